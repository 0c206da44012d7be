"""How long a run takes: its parts from the time of a step and of a pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedrbn.config import Experiment
from fedrbn.cost import estimate as module
from fedrbn.cost.estimate import estimate
from fedrbn.federated.assemble import assemble


def test_the_parts_add_up(tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_step_seconds", lambda _, duty: 5.0 if duty.at_share else 1.0)
    monkeypatch.setattr(module, "_pass_seconds", lambda _: (0.001, 0.003))
    assembly = assemble(tiny(train={"rounds": 4, "validate_every": 2}))
    found = estimate(assembly)
    # Five domains with an AT and an ST user of at most 32 images, so a step each: 4 · 5 · (5 + 1). An attack of two
    # steps takes 2 · 0.003 + 0.001; two validations attack for the AT users alone.
    images = len(assembly.federation.clients[0].validation)
    assert found.training == pytest.approx(120 + 2 * 5 * images * (0.007 + 0.001))
    # 80 test images: each branch attacked, the other by the adaptive adversary, and both at once, which counts twice.
    assert found.evaluation == pytest.approx(80 * 5 * 0.008 + 6)  # and a step of each role, to count operations
    assert found.startup == 0
    assert found.total == found.startup + found.training + found.evaluation
    assert estimate(assembly, finished=4).training == 0


@pytest.mark.parametrize(("seconds", "calls"), [(0.5, 2), (3.0, 1)])
def test_a_long_step_is_measured_once(seconds: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    made: list[float] = []

    def action() -> None:
        clock[0] += seconds
        made.append(seconds)

    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    assert module._shortest(action) == seconds
    assert len(made) == calls
