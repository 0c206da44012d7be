"""`python tools/pages.py`: inserts the latest measurements into README.md and the pages of docs that show them.

Each block is between marks `<!-- name -->` and `<!-- /name -->`: `steps`, `rounds`, `peers`, `growth`, `together` and
`profiling` come from `benchmarks/NAME.json`, `claims` from all tables in `results`, the others (`RESULTS`) from one
table each.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from fedrbn.reproduce import claims, claims_page, experiment_cells
from fedrbn.reproduce.differences import Difference
from fedrbn.reproduce.table import Number
from fedrbn.reproduce.table_text import difference_grid, printed_number, shown_mean

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    *(
        f"docs/{name}.md"
        for name in ("speed", "scaling", "benchmark", "plus", "choices", "transfer", "claims", "budgets")
    ),
)


@dataclasses.dataclass(frozen=True)
class Shown:
    """A part of a table of `fedrbn reproduce` (an empty name means all parts), and how a page shows it."""

    experiment: str
    scale: str = "full"
    threat: experiment_cells.Threat = "pixel"
    part: str = "Digits"
    kind: str = "plain"

    @property
    def folder(self) -> str:
        """The folder of the table in `results`."""
        return experiment_cells.folder_name(self.experiment, self.scale, self.threat)

    @property
    def command(self) -> str:
        """The command that makes the table."""
        return experiment_cells.command(self.experiment, self.scale, threat=self.threat)


RESULTS = {
    "benchmark-release": Shown("benchmark", threat="authors-release"),
    "highlight-release": Shown("highlight", threat="authors-release"),
    "rounds-release": Shown("rounds", "paper", threat="authors-release"),
    "benchmark": Shown("benchmark"),
    "differences": Shown("benchmark", kind="differences"),
    "strong": Shown("strong"),
    "plus": Shown("plus", kind="captioned"),
    "plus-adaptive": Shown("plus", part="Digits, adaptive"),
    "plus-differences": Shown("plus", kind="differences"),
    "plus-choice": Shown("plus-choice", "cpu"),
    "plus-parts": Shown("plus-parts"),
    "choices": Shown("choices", part="", kind="captioned"),
    "budgets": Shown("budgets", part="", kind="captioned", scale="cpu"),
    "domains": Shown("domains", part=""),
    "transfer": Shown("transfer", "cpu", part="", kind="captioned"),
    "bn-shift": Shown("bn-shift", part=""),
    "bn-shift-release": Shown("bn-shift", threat="authors-release", part=""),
}
"""Tables of `fedrbn reproduce`, by mark."""


def table(content: dict[str, Any]) -> str:
    """Rows with their targets, and where they were measured."""
    lines = ["| measurement | result | target | |", "|---|---|---|---|"]
    for row in content["rows"]:
        sign = "≥" if row["better"] == "more" else "≤"
        target = "" if row["target"] is None else f"{sign} {row['target']:.4g}"
        unit = "×" if row["unit"] == "x" else f" {row['unit']}" if row["unit"] else ""
        figure = "–" if row["figure"] is None else f"{row['figure']:.3g}{unit}"
        lines.append(f"| {row['what']} | {figure} | {target} | {row['verdict']} |")
    failed = "".join(f"{line}\n\n" for line in content.get("failed", ()))
    return "\n".join(lines) + "\n\n" + failed + where(content["machine"])


def shares(content: dict[str, Any]) -> str:
    """The profile."""
    lines = ["| what | share of the time |", "|---|---|"]
    lines += [f"| {name} | {share:.1%} |" for name, share in content["shares"].items()]
    return "\n".join(lines) + "\n\n" + where(content["machine"])


def where(machine: dict[str, Any]) -> str:
    """The machine and its load."""
    return (
        f"Measured on {machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, load "
        f"{machine['load']:.1f} at the end. A load above the number of cores means that other processes were running; "
        "then ratios of CPU time are still valid, ratios of wall-clock time are not."
    )


def comparison(content: dict[str, Any], part: str) -> str:
    """A part of a table: all metrics of each column, the paper's numbers in brackets, 10¹² MACs an epoch at the end.

    The paper's numbers have another adversary than `pixel`, so they stand only beside the released code's arithmetic.
    Rows and columns without any run are left out.
    """
    own = [number for number in content["numbers"] if number["part"] == part]
    run = [number for number in own if was_run(number)]
    rows, filled_columns = {number["row"] for number in run}, {number["column"] for number in run}
    numbers = [number for number in own if number["row"] in rows and number["column"] in filled_columns]
    if content["threat"] != "authors-release":
        numbers = [number | {"paper": None} for number in numbers]
    columns = list(dict.fromkeys(number["column"] for number in numbers))
    metrics = list(dict.fromkeys(number["metric"] for number in numbers if number["metric"] != "T"))
    cost = [column for column in ("20 %", columns[0]) if (column, "T") in {(n["column"], n["metric"]) for n in numbers}]
    heads = [f"{column}: " * bool(column) + " | ".join(metrics) for column in columns] + ["T"] * bool(cost)
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(metrics) * len(columns) + 1 + bool(cost)) + "|"]
    for row in dict.fromkeys(number["row"] for number in numbers):
        found = {(n["column"], n["metric"]): n for n in numbers if n["row"] == row}
        wanted = len(content["seeds"])
        shown = [_beside(found.get((column, metric)), wanted) for column in columns for metric in metrics]
        shown += [_ours(found.get((cost[0], "T")), wanted)] if cost else []
        lines.append(f"| {row} | {' | '.join(shown)} |")
    return "\n".join(lines)


def differences(content: dict[str, Any], part: str) -> str:
    """Rows compared with one of them, sample by sample, as in the table itself."""
    found = [
        Difference(**{name: one[name] for name in _fields(Difference)})
        for one in content["differences"]
        if one["part"] == part
    ]
    return "\n".join(difference_grid(found))


def was_run(number: dict[str, Any]) -> bool:
    """Whether a cell of a table has a run, finished or stopped."""
    return bool(number["seeds"] or number["stopped"])


def measured_parts(content: dict[str, Any]) -> list[str]:
    """The parts of a table with at least one run, in its order."""
    return list(dict.fromkeys(number["part"] for number in content["numbers"] if was_run(number)))


def of_results(content: dict[str, Any], part: str, kind: str) -> str:
    """What a page shows of a table of `fedrbn reproduce`: one part or all of them, and the meaning of the numbers."""
    parts = [part] if part else measured_parts(content)
    render = differences if kind == "differences" else comparison
    shown = [f"**{each}**\n\n" * (not part) + render(content, each) for each in parts]
    return "\n\n".join([*shown, *([content["caption"]] if kind == "captioned" else [])])


def _beside(number: dict[str, Any] | None, wanted: int) -> str:
    """Our number, and the paper's in square brackets."""
    ours = _ours(number, wanted)
    if not number or not ours:
        return ours
    paper = printed_number(number["paper"], number.get("paper_std"))
    return f"{ours} [{paper}]" if paper else ours


def _ours(number: dict[str, Any] | None, wanted: int) -> str:
    """Our number in the format of the table itself."""
    if number is None:
        return ""
    return shown_mean(Number(**{name: number[name] for name in _fields(Number) if name in number}), wanted)


def _fields(kind: type[Difference | Number]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


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


def contents() -> dict[str, str]:
    """The content of all blocks measured so far, by mark."""
    found = {"claims": claims_page.markdown(claims.read(), ROOT / "results")}
    for name in ("steps", "rounds", "peers", "growth", "together", "profiling"):
        path = ROOT / "benchmarks" / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            found[name] = shares(content) if name == "profiling" else table(content)
    for name, shown in RESULTS.items():
        path = ROOT / "results" / shown.folder / "table.json"
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"numbers": []}
        here = any(shown.part in ("", part) for part in measured_parts(content))  # --only may have excluded it
        found[name] = of_results(content, shown.part, shown.kind) if here else f"Not measured yet: `{shown.command}`"
    return found


def main() -> None:
    """Fill the pages."""
    found = contents()
    for name in PAGES:
        path = ROOT / name
        path.write_text(filled(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
