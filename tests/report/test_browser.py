"""The page in a real browser: drawn, pointed at, walked through with the keyboard, read in the dark and on a phone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedrbn.report import write_report

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'fedrbn[dev]'")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

CONTRAST = """() => {
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *:not(script)")) {
    const shown = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!shown || !element.getClientRects().length || element.closest("#tip")) continue;
    const style = getComputedStyle(element);
    let back = behind(element);
    if (element.closest("svg")) {
      back = behind(document.body);
      const own = element.getBoundingClientRect();
      const [x, y] = [own.left + own.width / 2, own.top + own.height / 2];
      // what is painted below the text, from the bottom up: a panel, a cell of some opacity, a disc
      for (const shape of element.closest("svg").querySelectorAll("path")) {
        const box = shape.getBoundingClientRect();
        const below = box.left < x && x < box.right && box.top < y && y < box.bottom;
        const { fill, fillOpacity } = getComputedStyle(shape);
        if (!below || fill === "none") continue;
        back = parts(fill).map((value, i) => Number(fillOpacity) * value + (1 - Number(fillOpacity)) * back[i]);
      }
    }
    const ink = parts(element.closest("svg") ? style.fill : style.color);
    const [light, dark] = [luminance(ink), luminance(back)].sort((a, b) => b - a);
    found.push([(light + 0.05) / (dark + 0.05), element.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@dataclass
class Opened:
    """A page in a browser, with what it complained about and what it asked the network for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def report(trained: Path, rival: Path, result: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([trained, rival, result], tmp_path_factory.mktemp("page") / "report.html", checks=False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: `make browser` installs it, or apt-get install chromium")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def opened(browser: Any, report: Path, **options: Any) -> Opened:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.problems.append(message.text))
    found.page.on("pageerror", lambda error: found.problems.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(report.as_uri())
    return found


@pytest.fixture
def desktop(browser: Any, report: Path) -> Iterator[Opened]:
    found = opened(browser, report)
    yield found
    assert found.problems == []
    found.page.context.close()


def test_charts_and_images_are_drawn(desktop: Opened) -> None:
    charts = desktop.page.locator("svg.chart")
    assert charts.count() >= 9  # comparison 3, table 1, FedRBN 5, FATBN 3
    for index in range(charts.count()):
        box = charts.nth(index).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 80
        marks = charts.nth(index).locator(".mark")
        assert marks.count() > 0
        assert marks.first.bounding_box()["width"] > 0
    sizes = desktop.page.eval_on_selector_all("img", "found => found.map((image) => image.naturalWidth)")
    assert len(sizes) == 2 * 5 * 4 * 3  # runs, domains, shots, frames
    assert set(sizes) == {28}


def test_no_request_leaves_the_page(desktop: Opened, report: Path) -> None:
    assert [url for url in desktop.requests if not url.startswith("data:")] == [report.as_uri()]
    refused = desktop.page.evaluate(
        "fetch('https://example.org').then(() => 'sent', () => 'refused')",
    )
    assert refused == "refused"
    assert any("Content Security Policy" in problem for problem in desktop.problems)
    desktop.problems.clear()


def test_pointing_at_a_mark_shows_its_value(desktop: Opened) -> None:
    tip = desktop.page.locator("#tip")
    assert not tip.is_visible()
    for chart in desktop.page.locator("svg.chart").all():
        mark = chart.locator(".mark").last
        mark.scroll_into_view_if_needed()
        mark.hover(force=True)
        assert tip.is_visible()
        assert ":" in tip.text_content()
    desktop.page.mouse.move(2, 2)
    assert not tip.is_visible()
    cell = desktop.page.locator(".mark.cell").first
    cell.hover()
    assert tip.text_content() == cell.get_attribute("aria-label")
    place, mark_place = tip.bounding_box(), cell.bounding_box()
    assert abs(place["x"] + place["width"] / 2 - mark_place["x"] - mark_place["width"] / 2) < 2


def test_the_keyboard_reaches_every_value(desktop: Opened) -> None:
    page = desktop.page
    chart = page.locator("svg.chart").filter(has=page.locator(".cell")).first
    marks = chart.locator(".mark")
    marks.first.focus()
    label = "document.activeElement.getAttribute('aria-label')"
    names = marks.evaluate_all("found => found.map((mark) => mark.getAttribute('aria-label'))")
    walk = {"ArrowRight": 1, "ArrowDown": 6, "ArrowLeft": 5, "ArrowUp": 0, "End": 24, "Home": 0}  # 5 × 5 cells
    for key, expected in walk.items():
        page.keyboard.press(key)
        assert page.evaluate(label) == names[expected], key
        assert page.locator("#tip").text_content() == names[expected]
    assert [mark.get_attribute("tabindex") for mark in marks.all()].count("0") == 1
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()
    page.keyboard.press("Tab")  # leaves the chart for its data
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    assert chart.locator("xpath=..").locator("table").is_visible()


def test_tables_match_the_files(desktop: Opened, trained: Path, rival: Path, result: Path) -> None:
    def table(caption: str) -> list[list[str]]:
        found = desktop.page.locator("table", has=desktop.page.locator(f"caption span:text-is({json.dumps(caption)})"))
        rows: list[list[str]] = found.first.evaluate(
            "table => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        return rows

    records = [
        json.loads((path / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()[0])
        for path in (trained, rival)
    ]
    shown = [row[2:5] for row in table("Accuracies in %, mean over users")[1:]]
    assert shown == [[f"{100 * record['mean'][c]:.1f}" for c in ("sa", "ra", "ra adaptive")] for record in records]
    by_domain = {row[0]: row[1] for row in table("RA by domain, in %, mean over seeds")[1:]}
    assert by_domain == {domain: f"{100 * found['ra']:.1f}" for domain, found in records[0]["domains"].items()}
    numbers = json.loads((result / "table.json").read_text(encoding="utf-8"))["numbers"]
    row = table("Digits: our number and the paper's number")[1]
    assert [float(cell.split(" ")[0]) for cell in row[1::2]] == [n["mean"] for n in numbers[:3]]
    assert [float(cell) for cell in row[2::2]] == [n["paper"] for n in numbers[:3]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(browser: Any, report: Path, scheme: str) -> None:
    found = opened(browser, report, color_scheme=scheme)
    found.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    measured = found.page.evaluate(CONTRAST)
    assert len(measured) > 500
    assert not [(round(ratio, 2), text) for ratio, text in measured if ratio < 4.5]  # WCAG AA
    dark = found.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 20, 24)"
    assert dark == (scheme == "dark")
    assert found.problems == []
    found.page.context.close()


def test_a_phone_need_not_scroll_sideways(browser: Any, report: Path) -> None:
    found = opened(browser, report, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    found.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert found.page.evaluate("document.documentElement.scrollWidth") == 360
    size = found.page.evaluate(
        """() => {
          const text = document.querySelector("svg.chart text");
          return 11 * text.getScreenCTM().a;
        }"""
    )
    assert size > 8.5  # pixels of text in charts
    mark = found.page.locator(".mark").first
    mark.scroll_into_view_if_needed()
    mark.tap(force=True)
    assert found.page.locator("#tip").is_visible()
    assert found.problems == []
    found.page.context.close()


def test_it_prints(browser: Any, report: Path, tmp_path: Path) -> None:
    found = opened(browser, report, color_scheme="dark")
    found.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    found.page.emulate_media(media="print", color_scheme="dark")
    assert found.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not found.page.locator("nav").is_visible()
    found.page.context.close()


def test_tables_fit_the_page_with_long_names_of_domains(browser: Any, trained: Path, tmp_path: Path) -> None:
    """At 1,300 pixels no table has to be scrolled, whatever users call their domains."""
    long = "photographs_of_the_north_western_regional_hospital"
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    for name in ("evaluations.jsonl", "rounds.jsonl"):
        file = copy / name
        file.write_text(file.read_text(encoding="utf-8").replace("synthetic", long), encoding="utf-8")
    found = opened(
        browser,
        write_report([copy], tmp_path / "report.html", images=False, checks=False),
        viewport={"width": 1300, "height": 900},
    )
    found.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    shown = found.page.locator("table", has_text=long)
    assert shown.count() >= 2  # domains, users
    wide = found.page.eval_on_selector_all(
        ".scroll",
        "found => found.filter((part) => part.scrollWidth > part.clientWidth + 1).map((part) => part.ariaLabel)",
    )
    assert wide == []
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 1300
    found.page.context.close()
