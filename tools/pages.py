"""`python tools/pages.py`: puts the latest figures into README.md and the pages of docs that show figures.

Each stands between marks `<!-- name -->` and `<!-- /name -->`: `steps`, `rounds`, `growth` and `profiling` come from
`benchmarks/NAME.json`; `benchmark` and `plus` from tables in `results`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/speed.md", "docs/scaling.md", "docs/plus.md")
RESULTS = {"benchmark": ("benchmark-cpu", "Digits"), "plus": ("plus-cpu", "Digits")}
"""Tables of `fedrbn reproduce`: the folder, and the part of the table."""


def table(content: dict[str, Any]) -> str:
    """Rows with their targets, and where they were measured."""
    lines = ["| figure | reached | target | |", "|---|---|---|---|"]
    for row in content["rows"]:
        sign = "≥" if row["better"] == "more" else "≤"
        target = "" if row["target"] is None else f"{sign} {row['target']:.4g}"
        unit = "×" if row["unit"] == "x" else f" {row['unit']}" if row["unit"] else ""
        lines.append(f"| {row['what']} | {row['figure']:.3g}{unit} | {target} | {row['verdict']} |")
    return "\n".join(lines) + "\n\n" + where(content["machine"])


def shares(content: dict[str, Any]) -> str:
    """The profile."""
    lines = ["| what | share of the time |", "|---|---|"]
    lines += [f"| {name} | {share:.1%} |" for name, share in content["shares"].items()]
    return "\n".join(lines) + "\n\n" + where(content["machine"])


def where(machine: dict[str, Any]) -> str:
    """The machine, and how busy it was."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, load {machine['load']:.1f} at "
        "the end (above the number of cores, others were running: ratios of CPU time still hold, those of the clock do "
        "not)."
    )


def comparison(content: dict[str, Any], part: str = "Digits") -> str:
    """Robust and standard accuracy of every method and setting, the paper's in brackets, and 10¹² MACs an epoch."""
    numbers = [number for number in content["numbers"] if number["part"] == part]
    columns = list(dict.fromkeys(number["column"] for number in numbers))
    lines = [
        "| method | " + " | ".join(f"{column}: RA | SA" for column in columns) + " | T |",
        "|---" * (2 * len(columns) + 2) + "|",
    ]
    for row in dict.fromkeys(number["row"] for number in numbers):
        found = {(n["column"], n["metric"]): n for n in numbers if n["row"] == row}
        accuracies = [_beside(found.get((column, metric))) for column in columns for metric in ("RA", "SA")]
        cost = found.get(("20 %" if "20 %" in columns else columns[0], "T"))
        lines.append(f"| {row} | {' | '.join(accuracies)} | {_cost(cost)} |")
    return "\n".join(lines) + f"\n\n{content['caption']}"


def _beside(number: dict[str, Any] | None) -> str:
    """Our mean, with the standard deviation over seeds where there is one, and the paper's number."""
    if number is None or number["mean"] is None:
        return ""
    std = "" if number["std"] is None else f" ± {number['std']:.1f}"
    paper = "" if number["paper"] is None else f" ({number['paper']:.1f})"
    return f"{number['mean']:.1f}{std}{paper}"


def _cost(number: dict[str, Any] | None) -> str:
    return "" if number is None or number["mean"] is None else f"{number['mean']:.3g}"


def filled(page: str, found: dict[str, str]) -> str:
    """The page with each `<!-- name -->…<!-- /name -->` filled."""
    for name, text in found.items():
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda m, text=text: m[1] + text + "\n" + m[2],
            page,
            flags=re.S,
        )
    return page


def main() -> None:
    """Fill the pages with what has been measured so far."""
    found = {}
    for name in ("steps", "rounds", "growth", "profiling"):
        path = ROOT / "benchmarks" / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            found[name] = shares(content) if name == "profiling" else table(content)
    for name, (folder, part) in RESULTS.items():
        path = ROOT / "results" / folder / "table.json"
        if path.exists():
            found[name] = comparison(json.loads(path.read_text(encoding="utf-8")), part)
    for name in PAGES:
        path = ROOT / name
        path.write_text(filled(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
