"""Lines of a run's files: what is read is written back as it was, and what cannot be used is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fedrbn.evaluation.records import EvaluationRecord, RoundRecord

ROUND: dict[str, Any] = {
    "key": "0",
    "eps": None,
    "round": 3,
    "lr": 1,
    "clients": {"a": {"loss": 1.0, "images": 7}, "b": {"loss": 2.0}, "c": {"seconds": 4}},
    "failures": [{"client": "d", "round": 3, "cause": "late", "node": [1, 2]}],
    "validation": {"score": None, "ra_at": 0.5},
    "seconds": 2,
    "of a newer version": {"deep": [1, {"er": None}]},
}
EVALUATION: dict[str, Any] = {
    "method": "fedrbn",
    "data": "digits-mini",
    "attack": "pgd-7",
    "threat": "pixel",
    "seed": 1,
    "attacks": {"pgd-7": {"eps": 0.5, "settings": "PGD()"}, "aa": {"eps": 1, "settings": "AA()", "new": True}},
    "deployment": "noised",
    "part": "test",
    "round": 3,
    "labels": {"mnist": "MNIST"},
    "samples_digest": "0",
    "users": {"a": {"domain": "mnist", "role": "AT", "predicts": "noised", "sa": 1, "ra": 0.25}},
    "domains": {"mnist": {"sa": 1.0, "ra": 0.25}},
    "mean": {"sa": 1.0, "ra": 0.25, "sa[aa]": 1.0, "ra[aa]": 0.0},
    "interval": {column: [0, 1.0] for column in ("sa", "ra", "sa[aa]", "ra[aa]")},
    "samples": dict.fromkeys(("sa", "ra", "sa[aa]", "ra[aa]"), 4),
    "worst_domain": {"sa": 1.0, "ra": 0.25},
    "checks": [{"name": "gradients", "passed": None, "detail": "too few images"}],
    "cost": {
        "macs_per_epoch": {"paper": 10, "actual": 12},
        "macs_total": {"paper": 20, "actual": 24},
        "macs_per_image": {"AT": {"paper": 1, "actual": 2}},
        "bytes": {"client": {"AT": {"down": 3, "up": 4}}, "round": {"down": 5, "up": 6}},
    },
    "privacy": {"epsilon": 2.5},
}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.1 + 0.2, 3])
def test_a_round_is_written_back_to_the_byte(number: float) -> None:
    """Keys nobody knows, whole numbers, numbers that are none: nothing is added, lost, rounded or reordered."""
    line = {**ROUND, "clients": {"a": {"loss": number}}}
    assert json.dumps(RoundRecord.from_json(line).to_json()) == json.dumps(line)


def test_an_evaluation_is_written_back_to_the_byte() -> None:
    assert json.dumps(EvaluationRecord.from_json(EVALUATION).to_json()) == json.dumps(EVALUATION)


def test_a_line_of_an_early_version_loads() -> None:
    record = RoundRecord.from_json({"round": 1, "clients": {}})
    assert (record.failures, record.warning, record.validated("score"), record.seconds) == ((), "", None, 0.0)
    assert record.to_json() == {"round": 1, "clients": {}}


def test_the_mean_loss_is_over_those_who_took_part_and_said_it() -> None:
    record = RoundRecord.from_json(ROUND)
    assert record.losses == {"a": 1.0, "b": 2.0}
    assert record.mean_loss(["a", "b", "c", "absent"]) == 1.5
    assert record.mean_loss(["absent"]) is None


def test_validation_that_was_not_measured_is_none() -> None:
    record = RoundRecord.from_json(ROUND)
    assert [record.validated(part) for part in ("score", "ra_at", "sa_st")] == [None, 0.5, None]


def test_columns_of_an_evaluation() -> None:
    record = EvaluationRecord.from_json(EVALUATION)
    assert (record.robust_column("pgd-7"), record.robust_column("aa")) == ("ra", "ra[aa]")
    assert (record.clean_column("pgd-7"), record.clean_column("aa")) == ("sa", "sa[aa]")
    assert (record.main_attack.eps, record.main_attack.in_config) == (0.5, False)
    assert (record.domain_label("mnist"), record.domain_label("usps")) == ("MNIST", "usps")
    assert [record.users["a"].accuracy(column) for column in ("sa", "ra", "ra[aa]")] == [1.0, 0.25, None]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("seed", "1", "seed"),
        ("mean", {"sa": True}, "mean.sa"),
        ("interval", {"sa": [0.0]}, "interval.sa"),
        ("users", {"a": {"domain": "x", "role": "AT", "predicts": "clean", "sa": []}}, "users.a.sa"),
        ("attack", "other", "attack 'other' is not among its attacks"),
        ("samples", {}, "column 'ra' has no interval or no count of samples"),
    ],
)
def test_what_is_used_is_checked(key: str, value: object, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluationRecord.from_json({**EVALUATION, key: value})
    first = caught.value.errors()[0]
    assert why in f"{'.'.join(map(str, first['loc']))} {first['msg']}"


def test_a_notebook_shows_a_record_as_tables() -> None:
    page = RoundRecord.from_json({**ROUND, "warning": "<b>loss</b>", "lr": 1 / 3})._repr_html_()
    assert page.startswith("<p><b>RoundRecord</b></p><table>")
    assert "<tr><td>lr</td><td>0.3333</td></tr>" in page
    assert "<tr><td>validation</td><td>ra_at 0.5</td></tr>" in page
    assert "<tr><td></td>" not in page
    assert "<th></th><th>loss</th><th>images</th><th>seconds</th>" in page  # of the table of clients
    assert "<tr><td>c</td><td></td><td></td><td>4</td></tr>" in page
    assert "<td>&lt;b&gt;loss&lt;/b&gt;</td>" in page
    users = "<tr><td>a</td><td>mnist</td><td>AT</td><td>noised</td><td>1</td><td>0.25</td></tr>"
    assert users in EvaluationRecord.from_json(EVALUATION)._repr_html_()


@pytest.mark.parametrize("share", [float("nan"), float("inf"), 57, -1, 1.0000001, -0.0])
@pytest.mark.parametrize("place", ["mean", "worst_domain", "domains", "users", "interval"])
def test_an_accuracy_that_cannot_be_one_is_refused(place: str, share: float) -> None:
    changed: dict[str, Any] = json.loads(json.dumps(EVALUATION))
    table = changed[place]
    row = {"domains": table.get("mnist"), "users": table.get("a")}.get(place, table)
    row["ra"] = [share, 1.0] if place == "interval" else share
    with pytest.raises(ValidationError, match="expected a share between 0 and 1"):
        EvaluationRecord.from_json(changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"interval": {**EVALUATION["interval"], "ra": [0.9, 0.1]}},
        {"samples": {**EVALUATION["samples"], "ra": -3}},
        {"samples": {**EVALUATION["samples"], "ra": 10**400}},
        {"round": -5},
        {"eps": float("nan")},
        {"attacks": {"pgd-7": {"eps": -1.0, "settings": ""}}},
    ],
)
def test_an_evaluation_with_impossible_numbers_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EvaluationRecord.from_json(EVALUATION | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"round": -5},
        {"round": 10**400},
        {"seconds": -1e9},
        {"seconds": float("inf")},
        {"lr": float("nan")},
        {"validation": {"score": 57}},
        {"validation": {"ra_at": float("nan")}},
        {"failures": [{"client": "d", "round": 10**400, "cause": "late"}]},
    ],
)
def test_a_round_with_impossible_numbers_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RoundRecord.from_json(ROUND | changed)
