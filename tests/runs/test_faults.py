"""Whole runs in which clients, disks and networks fail: what is in the record, and that the result stays exact."""

from __future__ import annotations

import io
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedrbn.config import ConfigError, Experiment, FaultsConfig
from fedrbn.errors import FederationError, StorageError
from fedrbn.federated.assemble import assemble
from fedrbn.federated.protocol import Evaluate, Execute, Failure, Job, Result, Round, Train
from fedrbn.federated.server import initial_state, round_of
from fedrbn.federated.uploads.collection import TooFewClientsError
from fedrbn.nets import build
from fedrbn.runs import train as runs
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.display import Display
from fedrbn.runs.recovery import StorageWarning, recover
from fedrbn.runs.round_loop import train_and_evaluate
from runs.test_train import Noting, assert_same_run

Make = Callable[..., Experiment]


def failing(execute: Execute, when: Callable[[Round, Job], bool]) -> Execute:
    """An executor whose clients fail on these occasions."""

    def execute_some(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        jobs = list(jobs)
        down = [job for job in jobs if when(round_, job)]
        yield from (Failure(job.client, round_.number, "OSError: the battery is empty") for job in down)
        yield from execute(round_, [job for job in jobs if job not in down])

    return execute_some


def train(
    experiment: Experiment, path: Path, when: Callable[[Round, Job], bool], watcher: Any = None
) -> dict[str, Any]:
    assembly = assemble(experiment)
    directory = RunDirectory.open(path) if path.exists() else RunDirectory.create(path, assembly.experiment)
    with directory.locked(), assembly.executor(directory.clients) as execute:
        recover(directory)
        if watcher:
            watcher.training(assembly, 0)
        return train_and_evaluate(assembly, directory, failing(execute, when), watcher)


def test_a_client_that_fails_is_in_the_record_and_on_the_screen_and_the_run_is_finished(
    tiny: Make, tmp_path: Path
) -> None:

    def down(round_: Round, job: Job) -> bool:
        return round_.number == 1 and job.client == "pen-0" and isinstance(job, Train)

    screen = io.StringIO()
    with Display(Console(file=screen, width=300), "run") as display:
        record = train(tiny(train={"rounds": 2}), tmp_path / "run", down, display)
    first, second = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert "failures" not in first
    assert second["failures"] == [{"client": "pen-0", "round": 2, "cause": "OSError: the battery is empty"}]
    assert len(second["clients"]) == 9
    assert len(record["users"]) == 10, "it is evaluated all the same, with the weights of the others"
    assert "client pen-0 is left out of round 2: OSError: the battery is empty" in screen.getvalue()


def test_a_client_that_cannot_be_validated_is_left_out_of_the_score_but_not_of_the_evaluation(
    tiny: Make, tmp_path: Path
) -> None:
    """The score of the others still chooses a round; the figures of a run are those of all clients, or an error."""
    for part in ("validation", "test"):

        def down(_: Round, job: Job, part: str = part) -> bool:
            return isinstance(job, Evaluate) and job.part == part and job.client == "pen-0"

        path, experiment = tmp_path / part, tiny(train={"rounds": 1})
        if part == "validation":
            train(experiment, path, down)
        else:
            with pytest.raises(FederationError, match="client 'pen-0' could not be evaluated: OSError: the battery"):
                train(experiment, path, down)
            assert runs.resume(path)["round"] == 1, "what was trained is not lost"
        (record,) = RunDirectory.open(path).records("rounds.jsonl")
        assert record["validation"]["score"] is not None


def test_too_few_clients_stop_the_run_with_its_state_saved_and_it_is_resumed_to_the_same_bits(
    trained: Path, tiny: Make, tmp_path: Path
) -> None:
    """From round 3 on all clients are gone. Once they are back the run ends as if nothing had happened."""
    path = tmp_path / "run"
    with pytest.raises(TooFewClientsError, match=r"0 of 5 AT users; expected at least 3 in round 3.*\n.*battery"):
        train(tiny(), path, lambda round_, job: round_.number >= 2 and isinstance(job, Train))
    directory = RunDirectory.open(path)
    (stop,) = directory.records("stops.jsonl")
    assert stop["round"] == 3
    assert len(stop["failures"]) == 10
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2]
    runs.resume(path)
    assert_same_run(trained, path)


def test_too_few_clients_can_be_waited_for(trained: Path, tiny: Make, tmp_path: Path) -> None:
    """All are gone the first time that each round asks, and there the second time: the same sums in the same order."""
    asked: list[int] = []

    def first_time(round_: Round, job: Job) -> bool:
        if not isinstance(job, Train):
            return False
        asked.append(round_.number)
        return asked.count(round_.number) <= 10

    faults = {"on_too_few": "wait", "wait_seconds": 0.01}
    train(tiny(faults=faults), tmp_path / "run", first_time)
    one, other = (RunDirectory.open(path).checkpoint("last") for path in (trained, tmp_path / "run"))
    assert one is not None
    assert other is not None
    assert all((one.state.shared[name] == tensor).all() for name, tensor in other.state.shared.items())
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert [len(record["failures"]) for record in rounds] == [10] * 4


@pytest.mark.parametrize("harm", ["a changed byte", "cut in the middle", "empty", "gone"])
def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before_to_the_same_bits(
    trained: Path, tiny: Make, tmp_path: Path, harm: str
) -> None:
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(), path, watcher=Noting(stop_after=3))
    file = path / "last.safetensors"
    content = file.read_bytes()
    middle = len(content) // 2
    if harm == "gone":
        file.unlink()
        runs.resume(path)
    else:
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"a changed byte": changed, "cut in the middle": content[:middle], "empty": b""}[harm])
        with pytest.warns(StorageWarning, match=r"last\.safetensors, which cannot be read.*continues from round 2"):
            runs.resume(path)
    assert_same_run(trained, path)


def test_a_checkpoint_of_another_network_is_refused(trained: Path, tiny: Make, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(), path, watcher=Noting(stop_after=1))
    wider = build("digits", 10, 1 / 8, (3, 28, 28), seed=1)
    with pytest.raises(StorageError, match=r"checkpoint of .* with shape .* where the network has shape .*--force"):
        runs.resume(path, network=wider)
    shutil.copy(trained / "last.safetensors", path)  # of the same network: it fits, and round 4 is the last
    shutil.copy(trained / "best.safetensors", path)
    assert runs.resume(path)["round"] == RunDirectory.open(trained).records("evaluations.jsonl")[0]["round"]


def test_a_loss_that_diverges_is_announced_while_it_is_a_number(tiny: Make, tmp_path: Path) -> None:
    """The learning rate is far too high, and updates of any size are let through."""
    experiment = tiny(train={"lr": 100.0, "rounds": 2, "validate_every": 2}, method={"name": "fatavg"})
    runs.run(experiment.model_copy(update={"faults": FaultsConfig(max_update=1e9)}), tmp_path / "run")
    first, second = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert "warning" not in first
    assert (
        "times that of its first round; expected it to fall. Its update was largest in layer 'network."
        in second["warning"]
    )
    assert "in round 2" in second["warning"]


def test_an_update_that_explodes_stops_the_run_with_client_layer_and_remedy(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(TooFewClientsError, match=r"client 'plain-0' failed in round 1: .*layer 'network\..*train\.lr"):
        runs.run(tiny(train={"lr": 1000.0}), tmp_path / "run")


@pytest.mark.slow
def test_a_deadline_needs_processes_that_can_be_given_up(tiny: Make) -> None:
    assembly = assemble(tiny(faults={"deadline_seconds": 30}, run={"workers": 1}))
    assert round_of(initial_state(assembly.net, assembly.plan), assembly.plan).deadline_seconds == 30
    before = set(multiprocessing.active_children())
    with assembly.executor():
        assert len(set(multiprocessing.active_children()) - before) == 1
    with pytest.raises(ConfigError, match=r"faults\.on_too_few"):
        tiny(faults={"on_too_few": "panic"})


@pytest.mark.parametrize(("secret", "times"), [(True, 4), (False, 3)])
def test_a_round_repeated_after_a_stop_is_counted_by_the_accountant(
    secret: bool, times: int, tiny: Make, tmp_path: Path
) -> None:
    """Three rounds, of which the second is stopped and repeated: four releases, if the noise is new each time."""
    pytest.importorskip("opacus")
    privacy = {"statistics_noise": 1e-3, "statistics_clip": 1e-6, "secret": secret}
    chosen = tiny(train={"rounds": 3}, privacy=privacy)
    with pytest.raises(TooFewClientsError):
        train(chosen, tmp_path / "run", lambda round_, job: round_.number == 1 and isinstance(job, Train))
    record = train(chosen, tmp_path / "run", lambda round_, job: False)
    assert record["privacy"]["releases"] == [{"what": "statistics", "noise_multiplier": 1e-3, "times": times}]
    last = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")[-1]
    assert last["privacy"] == record["privacy"]
