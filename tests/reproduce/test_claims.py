"""Claims of the paper: what a check compares, when a difference counts, which verdict follows from made-up tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrbn.config import ConfigError
from fedrbn.reproduce import claims, claims_page, declarations, table_text, verdicts
from fedrbn.reproduce.claims import Claim, CostCheck, Gap, Place, TableCheck
from fedrbn.reproduce.differences import Difference
from fedrbn.reproduce.experiment_cells import Threat
from fedrbn.reproduce.scales import SCALES, Scale
from fedrbn.reproduce.table import Number, Table
from fedrbn.reproduce.verdicts import Outcome, TableEvidence, Verdict

FEDRBN, FATBN = (Place("Digits", row, "20 %", "RA") for row in ("FedRBN λ=0.5", "FATBN"))
GAP = Gap(FEDRBN, FATBN, by=0.0, one_seed=2.0)
CLAIM = Claim(
    name="above",
    text="FedRBN is more robust.",
    place="Table 2",
    experiment="benchmark",
    scale="full",
    checks=(TableCheck(rows=(FEDRBN.row, FATBN.row), columns=("20 %",)),),
)


def evidence(ours: dict[int, float], theirs: dict[int, float], p: float | None = None) -> TableEvidence:
    return TableEvidence({FEDRBN: ours, FATBN: theirs}, {} if p is None else {(FEDRBN, FATBN): p})


def outcome(ours: dict[int, float], theirs: dict[int, float], p: float | None = None, by: float = 0.0) -> Outcome:
    found = verdicts.decided(replace(GAP, by=by), evidence(ours, theirs, p))
    return Outcome.MISSING if found is None else found.outcome


def write(
    results: Path,
    ours: dict[int, float],
    theirs: dict[int, float],
    *,
    threat: Threat = "pixel",
    scale: Scale = SCALES["full"],
    **changes: Any,
) -> None:
    """A table of the benchmark as `fedrbn reproduce` writes it, with two cells filled."""
    numbers = tuple(Number(*place, "digits", seeds, None) for place, seeds in ((FEDRBN, ours), (FATBN, theirs)))
    made = Table(declarations.read("benchmark"), numbers, {}, scale, threat, tuple(ours) or (1,), {})
    table_text.write(replace(made, **changes), results / f"benchmark-{scale.name}-{threat}")


def verdict(results: Path) -> Verdict:
    return claims_page.of_tables(CLAIM, verdicts.tables(results)).verdict


def test_every_claim_names_cells_of_its_experiment() -> None:
    for claim in claims.read():
        if claim.experiment is None:
            continue
        declaration = declarations.read(claim.experiment)
        cells = {
            Place(part.label, row.label, column.label, metric)
            for part in declaration.parts
            for row in part.rows
            for column in part.columns
            for metric in declaration.metrics
        }
        named = {place for gap in claim.gaps for place in (gap.more, gap.less) if place is not None}
        assert named <= cells, (claim.name, named - cells)


def test_names_of_claims_are_unique() -> None:
    names = [claim.name for claim in claims.read()]
    assert len(set(names)) == len(names)


def test_the_first_row_is_compared_with_each_other_in_each_column() -> None:
    found = claims.gaps(TableCheck(rows=("a", "b", "c"), columns=("x", "y")))
    pairs = [(gap.more.row, gap.less.row, gap.less.column) for gap in found if gap.more]
    assert pairs == [("a", "b", "x"), ("a", "c", "x"), ("a", "b", "y"), ("a", "c", "y")]
    assert all(gap.decides for gap in found)


def test_falling_is_decided_by_its_ends_and_no_step_may_rise() -> None:
    found = claims.gaps(TableCheck(rows=("a",), along="columns", columns=("5", "10", "50"), rule="falling"))
    assert [(gap.more.column, gap.less.column, gap.decides) for gap in found if gap.more] == [
        ("5", "50", True),
        ("5", "10", False),
        ("10", "50", False),
    ]
    place = {label: Place("Digits", "a", label, "RA") for label in ("5", "10", "50")}

    def together(five: float, ten: float, fifty: float) -> Outcome:
        numbers = {place["5"]: {1: five}, place["10"]: {1: ten}, place["50"]: {1: fifty}}
        return verdicts.together(found, [verdicts.decided(gap, TableEvidence(numbers, {})) for gap in found])

    assert together(50, 49, 40) is Outcome.HOLDS  # a step of 1 point is too small to count either way
    assert together(50, 53, 40) is Outcome.OPPOSITE  # it rises by 3 points first
    assert together(50, 49.5, 49) is Outcome.UNCLEAR


def test_one_seed_needs_two_points() -> None:
    assert outcome({1: 42.0}, {1: 40.0}) is Outcome.HOLDS
    assert outcome({1: 41.9}, {1: 40.0}) is Outcome.UNCLEAR
    assert outcome({1: 38.0}, {1: 40.0}) is Outcome.OPPOSITE
    assert outcome({1: 42.0}, {2: 40.0}) is Outcome.MISSING  # no seed has both


def test_several_seeds_need_two_standard_errors_and_one_point() -> None:
    theirs = {1: 40.0, 2: 40.0, 3: 40.0}
    # differences 1, 2, 3: mean 2, standard deviation 1, two standard errors 2/√3 = 1.15
    assert outcome({1: 41.0, 2: 42.0, 3: 43.0}, theirs) is Outcome.HOLDS
    # differences −1, 2, 5: mean 2, standard deviation 3, two standard errors 6/√3 = 3.46
    assert outcome({1: 39.0, 2: 42.0, 3: 45.0}, theirs) is Outcome.UNCLEAR
    # differences of 0.9 without any spread: below half of two points
    assert outcome({1: 40.9, 2: 40.9, 3: 40.9}, theirs) is Outcome.UNCLEAR


def test_mcnemar_must_agree_where_the_table_has_it() -> None:
    assert outcome({1: 44.0}, {1: 40.0}, p=0.04) is Outcome.HOLDS
    assert outcome({1: 44.0}, {1: 40.0}, p=0.05) is Outcome.UNCLEAR
    assert outcome({1: 44.0}, {1: 40.0}, p=0.9, by=1.0) is Outcome.HOLDS  # the test is of another difference


def test_a_margin_is_part_of_the_comparison() -> None:
    assert outcome({1: 51.0}, {1: 40.0}, by=10.0) is Outcome.UNCLEAR
    assert outcome({1: 52.0}, {1: 40.0}, by=10.0) is Outcome.HOLDS
    assert outcome({1: 36.0}, {1: 40.0}, by=-6.0) is Outcome.HOLDS  # up to 6 points less are allowed


def test_a_number_below_zero() -> None:
    (gap,) = claims.gaps(TableCheck(rows=("ρ",), metrics=("similarity",), rule="negative", one_seed=0.56))
    for value, expected in ((-0.6, Outcome.HOLDS), (-0.5, Outcome.UNCLEAR), (0.6, Outcome.OPPOSITE)):
        found = verdicts.decided(gap, TableEvidence({gap.less: {1: value}}, {}))
        assert found is not None
        assert found.outcome is expected


@pytest.mark.parametrize(
    ("pixel", "released", "expected"),
    [
        (52.0, 52.0, Verdict.HOLDS),
        (52.0, None, Verdict.HOLDS),
        (41.0, 52.0, Verdict.RELEASED_ONLY),
        (30.0, 52.0, Verdict.RELEASED_ONLY),
        (41.0, 41.0, Verdict.NOT_CONFIRMED),
        (41.0, None, Verdict.NOT_CONFIRMED),
        (30.0, 41.0, Verdict.CONTRADICTED),
        (None, 52.0, Verdict.NOT_MEASURED),
        (None, None, Verdict.NOT_MEASURED),
    ],
)
def test_verdicts(pixel: float | None, released: float | None, expected: Verdict, tmp_path: Path) -> None:
    rivals: dict[Threat, float | None] = {"pixel": pixel, "authors-release": released}
    for threat, ours in rivals.items():
        if ours is not None:
            write(tmp_path, {1: ours}, {1: 40.0}, threat=threat)
    assert verdict(tmp_path) is expected


def test_tables_of_another_scale_or_of_an_earlier_one_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {1: 52.0}, {1: 40.0}, scale=replace(SCALES["cpu"], about="a third of the paper's images"))
    write(tmp_path, {1: 52.0}, {1: 40.0}, scale=SCALES["smoke"])
    assert not verdicts.tables(tmp_path)
    write(tmp_path, {1: 52.0}, {1: 40.0}, scale=SCALES["cpu"])
    assert list(verdicts.tables(tmp_path)) == [("benchmark", "cpu", "pixel")]
    assert verdict(tmp_path) is Verdict.HOLDS


def test_numbers_of_other_images_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, {1: 52.0}, {1: 40.0}, stand_ins={"Digits": "digits-mini"})
    assert verdict(tmp_path) is Verdict.NOT_MEASURED


def test_the_larger_scale_decides_if_it_is_complete(tmp_path: Path) -> None:
    write(tmp_path, {1: 30.0}, {1: 40.0}, scale=SCALES["cpu"])
    write(tmp_path, {1: 52.0}, {}, scale=SCALES["full"])
    assert verdict(tmp_path) is Verdict.CONTRADICTED
    write(tmp_path, {1: 52.0}, {1: 40.0}, scale=SCALES["full"])
    assert verdict(tmp_path) is Verdict.HOLDS


def test_a_claim_of_which_some_cells_are_missing_can_be_contradicted_but_not_hold(tmp_path: Path) -> None:
    more = CLAIM.model_copy(update={"checks": (TableCheck(rows=(FEDRBN.row, FATBN.row, "FATAvg"), columns=("20 %",)),)})
    write(tmp_path, {1: 52.0}, {1: 40.0})
    assert claims_page.of_tables(more, verdicts.tables(tmp_path)).verdict is Verdict.NOT_MEASURED
    write(tmp_path, {1: 30.0}, {1: 40.0})
    assert claims_page.of_tables(more, verdicts.tables(tmp_path)).verdict is Verdict.CONTRADICTED


def test_the_tables_own_test_is_read(tmp_path: Path) -> None:
    tested = Difference("Digits", "20 %", "RA", FEDRBN.row, FATBN.row, {1: 4.0}, 40, 5, 3, p=0.7)
    write(tmp_path, {1: 44.0}, {1: 40.0}, differences=(tested,))
    assert verdict(tmp_path) is Verdict.NOT_CONFIRMED


def test_the_page_shows_the_papers_numbers_ours_and_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, {1: 47.0, 2: 48.0}, {1: 40.0, 2: 41.0})
    lines = claims_page.markdown([CLAIM], tmp_path).splitlines()
    assert "| 1 | FedRBN is more robust. | +14.6 | +7.0 ✓ (full, 2 seeds) |  | **holds** |" in lines
    assert "| FedRBN λ=0.5 over FATBN | Digits, 20 %, RA | 55.8 − 41.2 = +14.6 | 47.5 − 40.5 = +7.0 ✓ |  |" in lines
    assert lines[-3:-1] == ["```", "fedrbn reproduce benchmark --scale full --threat authors-release --only Digits/"]


def test_attacks_in_pixels_are_not_asked_for_under_another_threat_model(tmp_path: Path) -> None:
    (stronger,) = [claim for claim in claims.read() if claim.experiment == "attacks"]
    page = claims_page.markdown([stronger], tmp_path)
    assert "fedrbn reproduce attacks --scale full\n" in page
    assert "--threat" not in page


def test_the_paper_contradicts_itself_on_small_batches() -> None:
    # its text says more SA with smaller batches; its table has FATBN at 83.9 for B = 10 and 85.8 for B = 50
    (claim,) = [claim for claim in claims.read() if claim.name == "small-batches"]
    found = verdicts.as_printed(claim)
    assert found is not None
    assert found.outcome is Outcome.OPPOSITE


def test_costs_are_counted() -> None:
    pnc, st = ({"method": {"name": "fedrbn", "lam": lam}, "model": {"width": 0.25}} for lam in (0.5, 0.0))
    check = CostCheck(count="image of an ST user", of=pnc, over=st, at_most=2.1, paper=2.0)
    assert verdicts.ratio(check) == 2  # 6 passes and 3
    claim = Claim(name="cost", text="It doubles.", place="Section 4.3", cost=check)
    assert claims_page.of_cost(claim, check).verdict is Verdict.HOLDS
    dearer = check.model_copy(update={"at_most": 1.5})
    assert claims_page.of_cost(claim, dearer).verdict is Verdict.CONTRADICTED


def test_a_claim_needs_something_that_decides_it(tmp_path: Path) -> None:
    (tmp_path / "claims.toml").write_text('[[claims]]\nname = "n"\ntext = "t"\nplace = "p"\n', encoding="utf-8")
    with pytest.raises(ConfigError, match="expected an experiment with checks, or a cost"):
        claims.read(tmp_path / "claims.toml")
