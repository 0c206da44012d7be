"""A figure as SVG inside the page: it uses the page's colours and fonts, and shows its values on hover."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from markupsafe import Markup
from matplotlib.axes import Axes

from fedrbn.figures import style

INK, MUTED, RULE, GRID, BACK, PANEL, HEAT = (
    "#1b1f24", "#565e67", "#d8dce1", "#e6e9ed", "#fffffe", "#f5f6f8", "#00507f",
)  # fmt: skip
ON_LOW, ON_MIDDLE, ON_HIGH = "#000001", "#000002", "#fffffd"
"""The colours of numbers on cells: black or white depends on the cell and on the light or dark page."""
_THEME: Mapping[str, str] = {
    **{mark.colour: f"c{index}" for index, mark in enumerate(style.METHODS.values())},
    INK: "ink", MUTED: "muted", RULE: "rule", GRID: "grid", BACK: "back", PANEL: "panel", HEAT: "heat",
    ON_LOW: "on-low", ON_MIDDLE: "on-middle", ON_HIGH: "on-high",
}  # fmt: skip
"""Colours of the figures, and the page's custom properties that replace them."""
WIDTH = 400
"""The width of every chart in its own units: about the pixels of a phone, so that text stays readable there."""
LOOK: Mapping[str, object] = {
    **dict.fromkeys(("font.size", "xtick.labelsize", "ytick.labelsize", "legend.fontsize", "axes.titlesize"), 11),
    "figure.dpi": 72,  # one unit is one point
    "figure.facecolor": "none", "axes.facecolor": "none",
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": MUTED, "ytick.color": MUTED, "grid.color": GRID,
    "axes.spines.left": False, "axes.spines.bottom": False, "xtick.major.size": 0, "ytick.major.size": 0,
    "xtick.major.pad": 6, "ytick.major.pad": 6,
    "grid.linewidth": 1, "lines.linewidth": 2, "lines.markersize": 8.5, "lines.markeredgewidth": 1,
}  # fmt: skip
_RADIUS = 8.0
"""The radius of the disc that makes a value easy to hover over."""


@dataclass(frozen=True)
class Value:
    """A value at its position in the axes: hovering over it or focusing it with the keyboard shows `label`."""

    label: str
    x: float
    y: float


def embedded(title: str, axes: Axes, values: Sequence[Value], *, cells: bool = False) -> Markup:
    """The axes' figure for the page: the drawing, which screen readers skip, then its values as discs or cells.

    All values together are one Tab stop; arrow keys move between them.
    """
    content = io.BytesIO()
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ValueError("got axes without a figure; expected the axes of the chart.")
    figure.savefig(content, format="svg")
    root = ElementTree.fromstring(content.getvalue())  # noqa: S314  (drawn just now, by us)
    defined = {node.get("id", ""): node for node in root.iter() if node.get("id")}
    background = Element("g", {"aria-hidden": "true"})
    background.extend(found for child in root if (found := _themed(child, defined)) is not None)
    height = figure.bbox.height
    marks = Element("g", {"class": "marks"})
    for index, value in enumerate(values):
        known = {"role": "img", "tabindex": "-1" if index else "0", "aria-label": value.label}
        marks.append(_cell(axes, value, height, known) if cells else _disc(axes, value, height, known))
    about = {
        "viewBox": f"0 0 {WIDTH} {height:.0f}",
        "role": "group",
        "aria-roledescription": "chart",
        "aria-label": f"{title}. Arrow keys move between values; the table below has all of them.",
        "class": "chart",
    }
    whole = Element("svg", about)
    whole.extend((background, marks))
    return Markup(ElementTree.tostring(whole, encoding="unicode"))  # noqa: S704  (text was escaped on the way)


def _themed(node: Element, defined: Mapping[str, Element]) -> Element | None:
    """A node without ids, styles and references: styles become attributes, which the page's policy allows."""
    tag = node.tag.rpartition("}")[2]
    if tag in ("metadata", "defs"):
        return None
    if tag == "use":
        origin = defined[next(value for key, value in node.items() if key.endswith("href"))[1:]]
        moved = f"translate({_short(node.get('x', '0'))} {_short(node.get('y', '0'))})"
        return Element("path", {"d": _short(origin.get("d", "")), "transform": moved, **_look(origin), **_look(node)})
    kept = {key: _short(value) for key, value in node.items() if key in ("d", "x", "y", "transform")}
    made = Element(tag, {**kept, **_look(node)})
    made.text = node.text if tag == "text" else None
    made.extend(found for child in node if (found := _themed(child, defined)) is not None)
    return made if len(made) or tag != "g" else None


def _look(node: Element) -> dict[str, str]:
    """The styles of a node except its font, with the page's colours."""
    pairs = (part.split(":", 1) for part in node.get("style", "").split(";") if ":" in part)
    given = {key.strip(): value.strip() for key, value in pairs}
    return {
        key: f"var(--{_THEME[value]})" if value in _THEME else value
        for key, value in given.items()
        if not key.startswith("font")
    }


def _short(numbers: str) -> str:
    """Coordinates rounded to a tenth, the resolution of a screen."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found.group()):.1f}", numbers)


def _disc(axes: Axes, value: Value, height: float, known: Mapping[str, str]) -> Element:
    x, y = axes.transData.transform((value.x, value.y))
    place = {"cx": f"{x:.1f}", "cy": f"{height - y:.1f}", "r": f"{_RADIUS:g}"}
    return Element("circle", {**place, "class": "mark", **known})


def _cell(axes: Axes, value: Value, height: float, known: Mapping[str, str]) -> Element:
    corners = [(value.x - 0.5, value.y - 0.5), (value.x + 0.5, value.y + 0.5)]
    (x0, y0), (x1, y1) = sorted(axes.transData.transform(corners).tolist())
    left, top, width, down = x0, height - max(y0, y1), x1 - x0, abs(y1 - y0)
    place = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{width:.1f}", "height": f"{down:.1f}"}
    return Element("rect", {**place, "class": "mark cell", **known})
