"""Plans made again from recorded times: the same records give the same duties."""

from __future__ import annotations

from typing import Any

import pytest

from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, Experiment, make
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.methods import fatmeta, fedrbn
from fedrbn.fleet.planner import Workload
from fedrbn.fleet.replanning import duties_record, ensure_replannable, next_duties
from fedrbn.types import Duty, Member, Role

WORKLOAD = Workload(1000, 100, 10, 300, {Role.AT: 300, Role.ST: 200}, 8, 1, 7, 0.5)
"""1000 MACs an image, seven steps: AT takes 27 forward passes, ST 3. At 10⁶ MAC/s 100 images take 2.7 s and 0.3 s."""
MEMBERS = (Member("a", "d", Role.AT.duty, 100), Member("b", "d", Role.AT.duty, 100))


def experiment(every: int | None = 2, **more: Any) -> Experiment:
    own = {"at_share": 1.0, "speed": [1e6, 1e6, 1e6]}
    planned = {"deadline": 3.0, "clients": {"a": own, "b": own}, **more}
    return make({"federation": {"duties": planned, "replan": every}})


def record(number: int, a: float, b: float, duty: Duty = Role.AT.duty) -> RoundRecord:
    did = {"at_share": duty.at_share, "lam": duty.lam}
    return RoundRecord.from_json(
        {
            "round": number,
            "clients": {"a": {"loss": 1.0, "seconds": a}, "b": {"loss": 1.0, "seconds": b}},
            "duties": {"a": did, "b": {"at_share": 1.0, "lam": None}},
        }
    )


def test_measured_times_correct_the_speed() -> None:
    """a took 5.4 s for what should take 2.7: twice as slow, so ST takes 0.6 s and AT 5.4: 0.6 + s · 4.8 = 3, s = ½.

    b took 2.7 s, as predicted. Round 1 does not count: nobody could calibrate then.
    """
    found = next_duties(experiment(), MEMBERS, lambda: WORKLOAD, [record(1, 99.0, 99.0), record(2, 5.4, 2.7)])
    assert found == {"a": Duty(at_share=0.5), "b": Role.AT.duty}


def test_what_is_measured_is_measured_of_the_duty_of_that_round() -> None:
    """Half of the batches should take (2.7 + 0.3) / 2 = 1.5 s; a takes 3.0 s: it is still twice as slow, and stays."""
    half = Duty(at_share=0.5)
    found = next_duties(experiment(), MEMBERS, lambda: WORKLOAD, [record(3, 3.0, 2.7, half), record(4, 3.0, 2.7, half)])
    assert found["a"] == half


def test_between_two_plans_duties_stay() -> None:
    def never() -> Workload:
        raise AssertionError("no new plan is due")

    found = next_duties(experiment(), MEMBERS, never, [record(3, 50.0, 50.0, Duty(at_share=0.3))])
    assert found == {"a": Duty(at_share=0.3), "b": Role.AT.duty}
    assert next_duties(experiment(), MEMBERS, never, []) == {}, "the first round is as planned"
    assert next_duties(experiment(None), MEMBERS, never, [record(2, 9.0, 9.0)]) == {}, "off"


def test_records_name_duties_only_where_they_can_change() -> None:
    assert duties_record(experiment(None), MEMBERS) == {}
    assert duties_record(experiment(), MEMBERS)["duties"]["b"] == {"at_share": 1.0, "lam": None}


def test_what_cannot_be_planned_again_is_refused() -> None:
    method = fedrbn(PGD())
    ensure_replannable(experiment(), method)
    with pytest.raises(ConfigError, match="without a deadline"):
        ensure_replannable(experiment(deadline=None), method)
    with pytest.raises(ConfigError, match="without a speed of 'a'"):
        ensure_replannable(experiment(clients={"a": {}}), method)
    with pytest.raises(ConfigError, match="'fatmeta'"):
        ensure_replannable(experiment(), fatmeta(PGD()))
    with pytest.raises(ConfigError, match="replan without duties"):
        make({"federation": {"replan": 2}})
