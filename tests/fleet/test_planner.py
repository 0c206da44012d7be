from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.config import ConfigError, DutyConfig, from_toml, make
from fedrbn.cost.units import PLAIN, units
from fedrbn.errors import FleetError
from fedrbn.fleet import description
from fedrbn.fleet.planner import Assignment, Device, Speed, Workload, cost, plan
from fedrbn.fleet.probe import workload
from fedrbn.runs.measured import measured_seconds
from fedrbn.types import Duty, Role

AT = Role.AT.duty

WORKLOAD = Workload(
    macs=1000,
    weight_bytes=100,
    activation_bytes=10,
    download_bytes=300,
    upload_bytes={Role.AT: 300, Role.ST: 200},
    batch_size=8,
    local_epochs=1,
    attack_steps=7,
    lam=0.5,
)


def device(name: str = "a", domain: str = "d", speed: float = 1e6, samples: int = 100, **more: float) -> Device:
    """100 images of 1000 MACs at 1e6 MAC/s: a forward pass over them is 0.1 s, so a duty of n units takes n / 10 s."""
    return Device(name, domain, samples, Speed(speed, speed, speed), **more)


@pytest.mark.parametrize(
    ("duty", "expected"),
    [
        (PLAIN, 3),
        (Duty(lam=0.5), 6),
        (Duty(lam=1.0), 4),
        (AT, (7 + 1) * 3 + 3),
        (Duty(at_share=0.25), 0.25 * 27 + 0.75 * 3),
    ],
    ids=str,
)
def test_units_and_seconds(duty: Duty, expected: float) -> None:
    assert units(duty, 7) == pytest.approx(expected)
    assert cost(device(), WORKLOAD, duty).seconds == pytest.approx(expected / 10)


def test_the_papers_st_user_calibrates_with_the_methods_weight() -> None:
    assert cost(device(), WORKLOAD, Role.ST.duty) == cost(device(), WORKLOAD, Duty(lam=0.5))


def test_passes_have_speeds_of_their_own() -> None:
    """AT: 2 forward at 1e6 (0.2 s), 2 backward of 2 at 2e6 (0.2 s), 7 attack steps of 3 at 3e6 (0.7 s)."""
    quick = replace(device(), speed=Speed(1e6, 2e6, 3e6))
    assert cost(quick, WORKLOAD, AT).compute_seconds == pytest.approx(0.2 + 0.2 + 0.7)


def test_traffic_and_memory() -> None:
    """AT: 300 down and 300 up at 60 B/s are 10 s; memory is 4 · 100 of weights and both branches of 8 images, 160."""
    costs = cost(device(bandwidth=60.0), WORKLOAD, AT)
    assert costs.transfer_seconds == pytest.approx(10)
    assert costs.memory_bytes == 400 + 2 * 80
    assert cost(device(), WORKLOAD, PLAIN).traffic_bytes == 500
    assert cost(device(), WORKLOAD, PLAIN).memory_bytes == 400 + 80


@pytest.mark.parametrize(
    ("deadline", "duty"),
    [
        (2.7, AT),
        (1.5, Duty(at_share=0.5)),  # 0.3 + share · (2.7 − 0.3) = 1.5
        (0.60, Duty(at_share=0.1)),  # 0.3 + 0.125 · 2.4: rounded down to a multiple of 0.05
        (0.539, Duty(lam=1.0)),  # a tenth would take 0.54 s, λ = 0.5 takes 0.6 s, λ = 1 takes 0.4 s
        (0.35, PLAIN),
        (0.29, None),
    ],
)
def test_the_most_robust_duty_that_fits(deadline: float, duty: Duty | None) -> None:
    strong = device("strong", speed=1e9)  # so that there is somebody to receive BN_a from
    found = plan([device(), strong], WORKLOAD, deadline).assignments[0]
    assert found.duty == duty


def test_a_method_that_trains_all_batches_alike_gets_no_shares() -> None:
    """As Free AT, whose AT users replay every batch: 1.5 s would do for half of them, and λ = ½ takes 0.6 s."""
    strong = device("strong", speed=1e9)
    found = plan([device(), strong], replace(WORKLOAD, shares=False), 1.5).assignments[0]
    assert found.duty == Duty(lam=0.5)
    free = make({"method": {"name": "fatavg-free"}, "model": {"width": 1 / 16}})
    assert not workload(free, 10, (3, 28, 28)).shares


def test_memory_limits_the_duty() -> None:
    strong = device("strong", speed=1e9)
    found = plan([device(memory=500.0), strong], WORKLOAD, 100).assignments[0]
    assert found.duty == Duty(lam=1.0)  # one branch at a time: 480 bytes


def test_without_a_donor_nobody_calibrates() -> None:
    found = plan([device()], replace(WORKLOAD, attack_steps=100), 0.62)
    assert found.assignments[0].duty == PLAIN
    assert not found.feasible
    assert "no robustness to propagate" in found.problems[0]
    assert "a could at a deadline of 3.33 s" in found.problems[0]  # 0.9 · 0.3 + 0.1 · (101 · 3 + 3) / 10


def test_domains_without_at_are_named() -> None:
    found = plan([device("x", "rich", 1e9), device("y", "poor")], WORKLOAD, 0.5)
    assert found.coverage == {"rich": 1.0, "poor": 0.0}
    assert found.feasible
    assert "'poor' has no device" in found.problems[0]
    assert "y could at a deadline of 0.54 s" in found.problems[0]


def test_coverage_counts_images() -> None:
    """300 images of which all, and 100 of which half, are trained adversarially: 350 of 400."""
    found = plan([device("big", speed=1e9, samples=300), device("small")], WORKLOAD, 1.5)
    assert found.coverage == {"d": pytest.approx(350 / 400)}


def test_devices_that_cannot_take_part_are_explained() -> None:
    slow = plan([device("slow"), device("fast", speed=1e9)], WORKLOAD, 0.15)
    assert not slow.feasible
    assert "slow needs 0.3 s even for standard training" in slow.problems[0]
    assert "at most 50 samples" in slow.problems[0]
    small = plan([device("small", memory=450.0), device("fast", speed=1e9)], WORKLOAD, 10)
    assert "lower train.batch_size to 5" in small.problems[0]  # (450 − 400) / 10


def test_a_device_that_is_slower_than_measured_gets_less_to_do() -> None:
    """Predicted 2.7 s. A correction of 2 makes it 5.4 s, so AT on all batches no longer fits into 3 s."""
    first, strong = device(), device("strong", speed=1e9)
    assert plan([first, strong], WORKLOAD, 3.0).assignments[0].duty == AT
    again = plan([replace(first, correction=2.0), strong], WORKLOAD, 3.0).assignments[0]
    assert again.duty == Duty(at_share=0.5)  # 0.6 + 0.5 · 4.8 = 3.0


@given(
    speeds=st.lists(st.floats(1e4, 1e9), min_size=1, max_size=5),
    deadline=st.floats(0.01, 100),
    memory=st.one_of(st.none(), st.floats(100, 1000)),
)
def test_what_is_planned_fits(speeds: list[float], deadline: float, memory: float | None) -> None:
    devices = [device(str(i), speed=speed, memory=memory) for i, speed in enumerate(speeds)]
    found = plan(devices, WORKLOAD, deadline)
    for a in found.assignments:
        if a.duty is not None:
            assert a.seconds <= deadline * (1 + 1e-8)
            assert memory is None or a.memory_bytes <= memory
    longer = plan(devices, WORKLOAD, 2 * deadline)
    assert all(longer.coverage[domain] >= share - 1e-9 for domain, share in found.coverage.items())


def test_wrong_requests() -> None:
    with pytest.raises(ValueError, match="got 0 devices"):
        plan([], WORKLOAD, 1)
    with pytest.raises(ValueError, match="above 0"):
        Speed(0, 1, 1)


FLEET = """
deadline = 2
[model]
width = 0.0625
[[device]]
id = "pen"
count = 2
domain = "pen"
samples = 10
probe = "box.json"
[[device]]
id = "toy"
domain = "plain"
samples = 1000
macs_per_second = 1e6
memory = "64 MB"
bandwidth = "8 Mbit/s"
"""


@pytest.fixture
def fleet_file(tmp_path: Path) -> Path:
    speed = {"forward": 1e10, "backward": 1e10, "attack": 2e10}
    (tmp_path / "box.json").write_text(json.dumps({"speed": speed, "memory": 1e9, "bandwidth": None}))
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    return path


def test_a_fleet_file(fleet_file: Path) -> None:
    found = description.read(fleet_file)
    assert [d.id for d in found.devices] == ["pen-0", "pen-1", "toy"]
    assert found.devices[0].speed == Speed(1e10, 1e10, 2e10)
    assert found.devices[0].memory == 1e9
    assert found.devices[2] == Device("toy", "plain", 1000, Speed(1e6, 1e6, 1e6), 64e6, 1e6)
    assert found.experiment.model.width == 1 / 16


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("deadline = 2", "", "deadline: Field required"),
        ("macs_per_second = 1e6", "", "either macs_per_second or probe"),
        ('"64 MB"', '"64 megs"', "such as 512 MB"),
        ('id = "toy"', 'id = "pen-1"', "'pen-1' twice"),
        ("box.json", "gone.json", "fedrbn probe --json"),
        ("width = 0.0625", "widht = 1", "did you mean 'width'"),
    ],
)
def test_mistakes_in_a_fleet_file(fleet_file: Path, old: str, new: str, message: str) -> None:
    fleet_file.write_text(FLEET.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        description.read(fleet_file)


def test_the_command_explains_an_infeasible_fleet(fleet_file: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(fleet_file)])
    assert result.exit_code == 1
    assert "toy needs" in result.output
    assert "even for standard training" in result.output
    again = CliRunner().invoke(app, ["plan", str(fleet_file), "--deadline", "1e6", "--json"])
    assert again.exit_code == 0, again.output
    assert {d["duty"] for d in json.loads(again.output)["devices"].values()} == {"AT"}


def test_measured_rounds_of_a_run(fleet_file: Path, trained: Path) -> None:
    """The clients of the run that are devices of the fleet: pen-0 does AT and pen-1 PNC, from the second round on."""
    result = CliRunner().invoke(app, ["plan", str(fleet_file), "--measured", str(trained), "--json"])
    checks = json.loads(result.output)["checks"]
    rounds = [json.loads(line) for line in (trained / "rounds.jsonl").read_text().splitlines()]
    times = sorted(record["clients"]["pen-1"]["seconds"] for record in rounds[1:])
    assert {name: c["duty"] for name, c in checks.items()} == {"pen-0": "AT", "pen-1": "PNC, λ = 0.5"}
    assert checks["pen-1"]["measured"] == times[1]  # the median of three
    assert checks["pen-1"]["ratio"] == pytest.approx(times[1] / checks["pen-1"]["predicted"])
    with pytest.raises(ConfigError, match="Use the clients' ids for the devices"):
        description.check((device("stranger"),), WORKLOAD, measured_seconds(trained))


def test_a_plan_becomes_a_file_of_duties(tmp_path: Path) -> None:
    """At 1.5 s the strong device does AT, the other half of it; a device measured twice as slow has half its speed."""
    devices = (replace(device(memory=1e9), correction=1.0), replace(device("strong", speed=1e9), correction=2.0))
    written = description.duties_of(plan(devices, WORKLOAD, 1.5))
    assert written.clients["a"] == DutyConfig(at_share=0.5, speed=(1e6, 1e6, 1e6), memory=1e9)
    assert written.clients["strong"] == DutyConfig(at_share=1.0, speed=(5e8, 5e8, 5e8))
    (tmp_path / "duties.toml").write_text(description.to_toml(written))
    experiment = make({"federation": {"duties": str(tmp_path / "duties.toml")}})
    assert experiment.federation.duties == written
    assert from_toml(experiment.to_toml()) == experiment, "the run's own config holds the content"


def test_a_plan_that_leaves_somebody_out_is_not_written() -> None:
    devices = (device("slow"), device("fast", speed=1e9))
    with pytest.raises(FleetError, match="got a plan without a duty for 'slow'"):
        description.duties_of(plan(devices, WORKLOAD, 0.15))
    with pytest.raises(FleetError, match="no device trains adversarially"):
        description.duties_of(plan([device()], WORKLOAD, 0.4))


def test_assignment_time_is_the_sum() -> None:
    found = Assignment("a", "d", PLAIN, 2.0, 0.5, 1, 1)
    assert found.seconds == 2.5


def test_a_plan_shows_itself_in_a_notebook() -> None:
    """AT is 27 units, 2.7 s at 1e6 MAC/s. At 1.4e5 a unit takes 0.1 / 0.14 s: the 4 of PNC with λ = 1 fit in 3 s."""
    found = plan([device("<a>"), device("b", speed=1.4e5)], WORKLOAD, deadline=3.0)
    page = found._repr_html_()
    assert "<b>Plan for a deadline of 3 s per round</b>" in page
    assert "<td>&lt;a&gt;</td><td>d</td><td>AT</td><td>100%</td><td>2.7 s</td>" in page
    assert f"<td>b</td><td>d</td><td>{Duty(lam=1.0)}</td><td>0%</td><td>2.86 s</td>" in page
    assert "<p>adversarially trained images per domain: d 50%</p>" in page
    assert "adversarially trained images per domain: d 50%\n" in str(found)


def test_a_plan_shows_its_problems_in_a_notebook() -> None:
    found = plan([device("slow", speed=1.0)], WORKLOAD, deadline=3.0)
    assert found.problems
    assert all(f"<p>note: {escape(problem)}</p>" in found._repr_html_() for problem in found.problems)
    assert "<td>left out</td>" in found._repr_html_()


def test_a_plan_becomes_a_frame_with_a_row_per_device() -> None:
    pytest.importorskip("pandas")
    frame = plan([device("a"), device("b", speed=1.4e5)], WORKLOAD, deadline=3.0).to_frame()
    assert list(frame.index) == ["a", "b"]
    assert frame.loc["a", "duty"] == "AT"
    assert frame.loc["a", "seconds"] == pytest.approx(2.7)
    assert frame.loc["b", "seconds"] == pytest.approx(4 * 0.1 / 0.14)
