"""The tables of README and docs, made from JSON."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
THREATS = ("pixel", "authors-release")


@pytest.fixture(scope="module")
def pages() -> Any:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pages"] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def number(row: str, column: str, metric: str, paper: float | None, *ours: float) -> Any:
    place = {"part": "Digits", "row": row, "column": column, "metric": metric, "data": "digits", "paper": paper}
    return {**place, "seeds": {str(seed): value for seed, value in enumerate(ours, start=1)}, "stopped": {}}


def test_the_comparison_shows_ours_beside_the_papers_and_leaves_out_what_was_not_run(pages: Any) -> None:
    content = {
        "caption": "Small.",
        "threat": "authors-release",
        "seeds": [1, 2],
        "numbers": [
            number("FedRBN", "20 %", "RA", 55.8, 35.0, 37.0),
            number("FedRBN", "20 %", "SA", None, 74.0),
            number("FedRBN", "20 %", "T", 2.9, 0.4, 0.4),
            number("FATAvg", "20 %", "SA", 84.6, 73.0, 75.0),
            number("FATBN", "20 %", "RA", 41.2),
            number("FedRBN", "MNIST", "RA", 58.5),
            {**number("FATBN", "20 %", "RA", None, 30.0), "part": "another"},
        ],
    }
    lines = pages.of_results(content, "Digits", "captioned").splitlines()
    assert lines[0] == "| | 20 %: RA | SA | T |"
    assert lines[2] == "| FedRBN | 36.0 ± 1.4 [55.8] | 74.0 (1) | 0.4 |"
    assert lines[3] == "| FATAvg |  | 74.0 ± 1.4 [84.6] |  |"
    assert not any("FATBN" in line or "MNIST" in line for line in lines)
    assert lines[-1] == "Small."
    assert pages.of_results(content, "", "plain").startswith("**Digits**\n\n| | 20 %: RA")


def test_parts_without_any_run_are_left_out(pages: Any) -> None:
    numbers = [number("FATBN", "20 %", "RA", None, 41.9), {**number("FATBN", "20 %", "RA", None), "part": "MNIST"}]
    content = {"seeds": [1], "threat": "pixel", "numbers": numbers}
    assert pages.of_results(content, "", "plain") == "**Digits**\n\n| | 20 %: RA |\n|---|---|\n| FATBN | 41.9 |"


def test_a_run_that_stopped_says_so_and_costs_are_shown_only_where_there_are_any(pages: Any) -> None:
    stopped = {**number("off", "SVHN", "RA", None), "stopped": {"1": 12}}
    assert pages.comparison({"seeds": [1], "threat": "pixel", "numbers": [stopped]}, "Digits") == (
        "| | SVHN: RA |\n|---|---|\n| off | stopped in round 12 |"
    )


def test_the_papers_numbers_stand_only_beside_its_own_adversary(pages: Any) -> None:
    one = number("FATBN", "20 %", "RA", 41.2, 41.9)
    shown = {
        threat: pages.comparison({"seeds": [1], "threat": threat, "numbers": [one]}, "Digits") for threat in THREATS
    }
    assert shown["pixel"].endswith("| FATBN | 41.9 |")
    assert shown["authors-release"].endswith("| FATBN | 41.9 [41.2] |")


def test_differences_are_shown_with_their_sign_and_probability(pages: Any) -> None:
    def one(row: str, seeds: dict[str, float], p: float) -> dict[str, object]:
        place = {"part": "Digits", "column": "20 %", "metric": "RA", "row": row, "against": "FATBN"}
        return {**place, "seeds": seeds, "samples": 40, "only_row": 2, "only_against": 1, "p": p, "mean": 0, "std": 0}

    content = {"differences": [one("FedRBN", {"1": 3.0, "2": 5.0}, 1e-9), one("FATAvg", {"1": -0.3}, 0.412)]}
    assert pages.of_results(content, "Digits", "differences") == (
        "|  | 20 % RA |\n|---|---:|\n| FedRBN | +4.0 ± 1.4 (2; p < 0.001) |\n| FATAvg | -0.3 (1; p = 0.41) |"
    )


def test_only_the_place_between_the_marks_is_filled(pages: Any) -> None:
    page = "a\n<!-- x -->\nold\n<!-- /x -->\nb\n<!-- y -->\nkept\n<!-- /y -->\n"
    assert pages.filled(page, {"x": "new"}) == page.replace("old", "new")


def test_the_page_of_claims_is_up_to_date(pages: Any) -> None:
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    assert page == pages.filled(page, pages.contents()), "write it anew: python tools/pages.py"
