"""`python -m soak.table`: the tables of docs/reliability.md, from the pieces in `results/reliability/*.json`.

A piece is an object with `section`, `made_by`, `scale`, `seed` and `rows`; a row has `fault`, `tried`, `happened` and
`lost`. Every program that tests faults or attacks writes one, and its rows appear in the document.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- tables: python -m soak.table -->", "<!-- end of tables -->"


def piece(content: dict[str, Any]) -> str:
    """One piece as Markdown: a heading, where it comes from, and its rows."""
    made = f"`{content['made_by']}`, seed {content['seed']}; {content['scale']}"
    if "seconds" in content:
        made += f"; {content['seconds'] / 60:.0f} minutes"
    if "processor_seconds" in content:
        made += f", of which {content['processor_seconds'] / 60:.0f} of processor time"
    lines = [
        f"### {content['section']}",
        "",
        f"{made}.",
        "",
        "| fault or attack | tried | what happened | lost |",
        "|---|---:|---|---|",
    ]
    for row in content["rows"]:
        lines.append(f"| {row['fault']} | {row['tried']:,} | {row['happened']} | {row['lost']} |")
    return "\n".join(lines)


def document(text: str, pieces: list[dict[str, Any]]) -> str:
    """The document with regenerated tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = "\n\n".join(piece(content) for content in pieces)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def main() -> None:
    """Rewrite docs/reliability.md."""
    path = ROOT / "docs" / "reliability.md"
    files = sorted((ROOT / "results" / "reliability").glob("*.json"))
    pieces = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    path.write_text(document(path.read_text(encoding="utf-8"), pieces), encoding="utf-8")


if __name__ == "__main__":
    main()
