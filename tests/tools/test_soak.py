"""The tables of docs/reliability.md are made from pieces, and stand in the document."""

from __future__ import annotations

import json
from pathlib import Path

from soak.table import BEGIN, END, document, piece

ROOT = Path(__file__).parents[2]
PIECE = {
    "section": "Faults",
    "made_by": "make soak",
    "seed": 1,
    "scale": "tiny",
    "seconds": 600,
    "rows": [{"fault": "a fire", "tried": 12000, "happened": "put out", "lost": "nothing"}],
}


def test_a_piece_is_a_table_that_says_where_it_comes_from() -> None:
    assert piece(PIECE).splitlines() == [
        "### Faults",
        "",
        "`make soak`, seed 1; tiny; 10 minutes.",
        "",
        "| fault or attack | tried | what happened | lost |",
        "|---|---:|---|---|",
        "| a fire | 12,000 | put out | nothing |",
    ]


def test_making_the_tables_again_changes_nothing_but_the_tables() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    once = document(text, [PIECE, PIECE])
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert once.count("### Faults") == 2
    assert document(once, [PIECE, PIECE]) == once


def test_the_document_holds_the_pieces_that_are_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "results" / "reliability").glob("*.json"))
    assert files, "run make soak"
    assert document(text, [json.loads(file.read_text(encoding="utf-8")) for file in files]) == text
