"""Whole runs: reproducible, resumable to the bit, and turned into networks afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrbn
from fedrbn.config import ConfigError, Experiment
from fedrbn.errors import FederationError, HardwareError, StorageError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.protocol import Answers, Result, Upload
from fedrbn.nets.state import tensors
from fedrbn.runs import train as runs
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Branch, Role, Stats

Make = Callable[..., Experiment]


class Noting:
    """A watcher that writes down what it is told, and can stop a run."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after = stop_after
        self.finished = -1
        self.rounds: list[int] = []
        self.results: list[Result] = []
        self.evaluated = 0

    def training(self, assembly: Assembly, finished: int) -> None:
        self.finished = finished

    def answered(self, result: Result) -> None:
        self.results.append(result)

    def round_finished(self, record: RoundRecord) -> None:
        self.rounds.append(record.round)
        if record.round == self.stop_after:
            raise KeyboardInterrupt

    def evaluating(self, clients: int) -> None:
        self.evaluated = clients


def without_seconds(value: Any) -> Any:
    """Everything but how long it took."""
    if isinstance(value, dict):
        return {key: without_seconds(inner) for key, inner in value.items() if key != "seconds"}
    return [without_seconds(inner) for inner in value] if isinstance(value, list) else value


def assert_same_run(first: Path, second: Path) -> None:
    """Equal checkpoints bit for bit, equal records but for the seconds, equal answers."""
    one, other = RunDirectory.open(first), RunDirectory.open(second)
    for name in ("last", "best"):
        mine, theirs = one.checkpoint(name), other.checkpoint(name)
        assert mine is not None
        assert theirs is not None
        assert mine.best == theirs.best
        assert (mine.state.round, mine.state.reported) == (theirs.state.round, theirs.state.reported)
        parts = [(mine.state.shared, theirs.state.shared)]
        parts += [(own, theirs.state.personal[client]) for client, own in mine.state.personal.items()]
        for ours, yours in parts:
            assert ours.keys() == yours.keys()
            assert all(torch.equal(tensor, yours[key]) for key, tensor in ours.items())
    for name in ("rounds.jsonl", "evaluations.jsonl"):
        assert without_seconds(one.records(name)) == without_seconds(other.records(name))
    answers, others = (run.load_tensors("answers/0.safetensors") for run in (one, other))
    assert answers.keys() == others.keys()
    assert all(torch.equal(right, others[key]) for key, right in answers.items())


def test_a_run_leaves_its_config_records_and_checkpoints(trained: Path, tiny: Make) -> None:
    directory = RunDirectory.open(trained)
    experiment = directory.experiment()
    assert experiment.method.lam == 0.5, "the method's own options are written down"
    assert experiment.train == tiny().train
    rounds = directory.records("rounds.jsonl")
    assert [record["round"] for record in rounds] == [1, 2, 3, 4]
    assert [record["round"] for record in rounds if "validation" in record] == [2, 4], "validate_every = 2"
    assert len(rounds[0]["clients"]) == 10
    assert rounds[0]["clients"]["pen-0"]["loss"] > 0
    (evaluation,) = directory.records("evaluations.jsonl")
    assert evaluation["method"] == "fedrbn"
    assert evaluation["seed"] == 1
    assert evaluation["versions"]["torch"] == torch.__version__
    assert {name: user["role"] for name, user in evaluation["users"].items() if user["domain"] == "pen"} == {
        "pen-0": "AT",
        "pen-1": "ST",
    }
    last = directory.checkpoint("last")
    assert last is not None
    assert last.state.round == 4
    assert [path.name for path in trained.rglob("*.tmp")] == []


def test_the_server_computes_with_one_thread_whatever_its_caller_has(tiny: Make, tmp_path: Path) -> None:
    """In every round and in the evaluation; afterwards the caller has as many as before."""
    seen: list[int] = []

    class Counting(Noting):
        def round_finished(self, record: RoundRecord) -> None:
            seen.append(torch.get_num_threads())

        def evaluating(self, clients: int) -> None:
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        runs.run(tiny(train={"rounds": 1, "validate_every": 1}), tmp_path / "run", watcher=Counting())
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_best_round_is_the_first_of_the_highest_validation_score(trained: Path) -> None:
    directory = RunDirectory.open(trained)
    scores = {r["round"]: r["validation"]["score"] for r in directory.records("rounds.jsonl") if "validation" in r}
    best = directory.checkpoint("best")
    assert best is not None
    assert best.best is not None
    assert best.state.round == best.best.round == max(scores, key=scores.__getitem__)
    assert best.best.score == max(scores.values())
    assert directory.records("evaluations.jsonl")[0]["round"] == best.state.round


def test_the_same_seed_gives_the_same_bits_and_another_does_not(trained: Path, tiny: Make, tmp_path: Path) -> None:
    runs.run(tiny(), tmp_path / "again")
    assert_same_run(trained, tmp_path / "again")
    runs.run(tiny(run={"seed": 2}), tmp_path / "other")
    one, other = (RunDirectory.open(path).checkpoint("last") for path in (trained, tmp_path / "other"))
    assert one is not None
    assert other is not None
    assert not torch.equal(one.state.shared["network.fc1.weight"], other.state.shared["network.fc1.weight"])


def test_a_run_that_is_continued_keeps_the_precision_of_its_records(
    trained: Path, tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins where bfloat16 is not worth it and is continued where `auto` would take it."""
    monkeypatch.setattr("fedrbn.hardware.bfloat16_gain", lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(run={"precision": "auto"}), tmp_path / "run", watcher=Noting(stop_after=1))
    monkeypatch.setattr("fedrbn.hardware.bfloat16_gain", lambda: 2.0)
    record = runs.resume(tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    assert [line["precision"] for line in directory.records("rounds.jsonl")] == ["float32"] * 4
    assert record["precision"] == "float32"
    ours, theirs = directory.checkpoint("last"), RunDirectory.open(trained).checkpoint("last")
    assert ours is not None
    assert theirs is not None
    assert all(torch.equal(tensor, theirs.state.shared[name]) for name, tensor in ours.state.shared.items())


def test_a_run_in_bfloat16_is_not_continued_where_there_is_none(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrbn.hardware.bfloat16_gain", lambda: 0.0)
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(run={"precision": "auto"}), tmp_path / "run", watcher=Noting(stop_after=1))
    lines = tmp_path / "run" / "rounds.jsonl"
    lines.write_text(
        lines.read_text()
        .replace('"precision":"float32"', '"precision":"bfloat16"')
        .replace('"precision": "float32"', '"precision": "bfloat16"')
    )
    with pytest.raises(
        HardwareError, match=r"trained in bfloat16 so far, on a device that cannot .* Continue it there"
    ):
        runs.resume(tmp_path / "run")


@pytest.mark.parametrize("stop", [1, 2])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(
    trained: Path, tiny: Make, tmp_path: Path, stop: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(), tmp_path / "run", watcher=Noting(stop_after=stop))
    watcher = Noting()
    record = runs.resume(tmp_path / "run", watcher=watcher)
    assert watcher.finished == stop
    assert watcher.rounds == list(range(stop + 1, 5))
    assert record["round"] == RunDirectory.open(trained).records("evaluations.jsonl")[0]["round"]
    assert_same_run(trained, tmp_path / "run")


def test_noise_on_the_mean_is_the_same_after_an_interruption(tiny: Make, tmp_path: Path) -> None:
    """It is drawn tensor by tensor, so the tensors' order matters."""
    private = tiny(privacy={"update_noise": 0.1, "update_at": "server"}, train={"rounds": 3})
    runs.run(private, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        runs.run(private, tmp_path / "run", watcher=Noting(stop_after=1))
    runs.resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_crashed_anywhere_between_two_writes_ends_the_same(
    trained: Path, tiny: Make, tmp_path: Path
) -> None:
    """After round 2: the line of round 3 is written and its best state saved, a further line cut off, a file half."""
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(), path, watcher=Noting(stop_after=2))
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "lr": 99, "clients": {}}\n{"round": 4, "cli')
    (path / ".last.safetensors.q.tmp").write_bytes(b"half")
    (path / "evaluations.jsonl").write_text('{"key": "')
    runs.resume(path)
    assert_same_run(trained, path)
    assert list(path.rglob("*.tmp")) == []


def test_a_run_stopped_before_its_first_round_can_be_resumed(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(train={"rounds": 1})
    RunDirectory.create(tmp_path / "run", experiment)
    assert runs.resume(tmp_path / "run")["round"] == 1


def test_resuming_a_finished_run_returns_its_record_at_once(trained: Path) -> None:
    watcher = Noting()
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert runs.resume(trained, watcher=watcher) == RunDirectory.open(trained).records("evaluations.jsonl")[0]
    assert watcher.finished == -1, "nothing was trained"
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "delay"), [(1, 0.0), (2, 0.03), (3, 0.01)])
def test_a_killed_process_is_resumed_to_the_same_bits(
    trained: Path, tiny_options: list[str], tmp_path: Path, rounds: int, delay: float
) -> None:
    """SIGKILL of a real process with worker processes, soon after it has written the line of some round."""
    path = tmp_path / "run"
    code = "from fedrbn.cli import main; main()"
    options = ["run", *tiny_options, "--rounds", "4", "--set", "run.workers=2", "--out", str(path), "--quiet"]
    with subprocess.Popen([sys.executable, "-c", code, *options], start_new_session=True) as process:
        deadline = time.monotonic() + 120
        lines = path / "rounds.jsonl"
        while not lines.exists() or lines.read_bytes().count(b"\n") < rounds:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert len(RunDirectory.open(path).records("evaluations.jsonl")) == 0, "it was killed in the middle"
    runs.resume(path, workers=1)
    assert_same_run(trained, path)


def test_a_watcher_is_told_of_every_answer(tiny: Make, tmp_path: Path) -> None:
    watcher = Noting()
    runs.run(tiny(train={"rounds": 1}), tmp_path / "run", watcher=watcher)
    assert (watcher.finished, watcher.rounds, watcher.evaluated) == (0, [1], 10)
    assert sum(isinstance(result, Upload) for result in watcher.results) == 10
    assert sum(isinstance(result, Answers) for result in watcher.results) == 20, "validation and test"


def test_without_validation_data_the_last_round_is_chosen(tiny: Make, tmp_path: Path) -> None:
    record = runs.run(tiny(train={"rounds": 2, "validate_every": 1}, federation={"validation": 0}), tmp_path / "run")
    assert record["round"] == 2
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert rounds[0]["validation"] == {"score": None, "ra_at": None, "sa_st": None}


def test_partial_participation_reports_the_sampled_only(tiny: Make, tmp_path: Path) -> None:
    runs.run(tiny(train={"rounds": 2}, federation={"participants": 0.3}), tmp_path / "run")
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert [len(record["clients"]) for record in rounds] == [3, 3]
    trained = fedrbn.load(tmp_path / "run")
    for client in trained.clients:
        assert trained.client(client)(torch.rand(2, 3, 28, 28)).shape == (2, 10)


def test_evaluating_again_adds_a_record_with_the_same_numbers(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(trained, path)
    with (path / "evaluations.jsonl").open("a") as file:
        file.write('{"cut": ')
    record = runs.evaluate(path)
    first, second = RunDirectory.open(path).records("evaluations.jsonl")
    assert without_seconds(first) == without_seconds(second) == without_seconds(json.loads(json.dumps(record)))
    assert (path / "answers" / "1.safetensors").exists()


def test_a_run_without_a_checkpoint_cannot_be_evaluated_or_loaded(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(trained, path, ignore=shutil.ignore_patterns("*t.safetensors"))
    for use in (runs.evaluate, fedrbn.load):
        with pytest.raises(StorageError, match="without a checkpoint"):
            use(path)


def test_an_unfinished_run_cannot_be_evaluated_because_resume_would_take_it_for_finished(
    tiny: Make, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        runs.run(tiny(), tmp_path / "run", watcher=Noting(stop_after=1))
    with pytest.raises(StorageError, match=r"which is not finished; .* Continue it with --resume"):
        runs.evaluate(tmp_path / "run")


def test_divergence_ends_the_run_with_the_client_and_a_remedy(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"client '.*' failed in round \d: .*layer 'network\..*train\.lr"):
        runs.run(tiny(train={"lr": 1e30}), tmp_path / "run")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"federation": {"participants": 11}}, "participants = 11; expected at most the 10 users"),
        ({"train": {"aggregation": "medain"}}, "train.aggregation 'medain'"),
        ({"train": {"aggregation": "math:pi"}}, "which is float; expected .shared, contributions. -> shared"),
        ({"method": {"name": "fatavg", "lam": 0.5}}, "method.lam"),
        ({"federation": {"at": "pem"}}, "Did you mean pen"),
        ({"model": {"name": "digit"}}, "Did you mean 'digits'"),
    ],
)
def test_wrong_requests_fail_before_a_directory_is_made(
    tiny: Make, tmp_path: Path, section: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        runs.run(tiny(**section), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_accelerator_is_not_shared_by_several_processes(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the accelerator that the test asks for in vain")
    with pytest.raises(ValueError, match=r"got run\.device = 'cuda'.*Use run\.device = 'cpu'"):
        assemble(tiny(run={"device": "cuda"}))


def test_some_domains_in_the_order_of_the_config(tiny: Make) -> None:
    assembly = assemble(tiny(data={"domains": ["pen", "plain"]}))
    assert [member.id for member in assembly.plan.members] == ["pen-0", "pen-1", "plain-0", "plain-1"]
    with pytest.raises(ValueError, match=r"got domain 'pem'.*Did you mean 'pen'"):
        assemble(tiny(data={"domains": ["pem"]}))


def test_own_aggregation_by_reference(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_aggregation_for_test.py").write_text(
        "def frozen(shared, contributions):\n    for _ in contributions: pass\n    return shared\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    runs.run(tiny(train={"rounds": 1, "aggregation": "own_aggregation_for_test:frozen"}), tmp_path / "run")
    after = RunDirectory.open(tmp_path / "run").checkpoint("last")
    assert after is not None
    initial = tensors(assemble(tiny()).net)
    assert all(torch.equal(tensor, initial[name]) for name, tensor in after.state.shared.items())


@pytest.fixture(scope="module")
def loaded(trained: Path) -> fedrbn.Trained:
    return fedrbn.load(trained)


PIXELS = torch.rand(5, 3, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("branch", Branch)
def test_a_clients_network_is_its_branch_of_the_dual_network(loaded: fedrbn.Trained, branch: Branch) -> None:
    for client in ("pen-0", "street-1"):
        ordinary, dual = loaded.client(client, branch), loaded.dual_client(client)
        assert not ordinary.training
        with torch.no_grad():
            assert torch.equal(ordinary(PIXELS), dual(PIXELS, branch, Stats.FROZEN))
            assert not torch.equal(ordinary(PIXELS), loaded.client("plain-0", branch)(PIXELS))


def test_the_default_is_the_branch_that_predicts(loaded: fedrbn.Trained) -> None:
    with torch.no_grad():
        expected = loaded.dual_client("pen-1")(PIXELS, Branch.NOISED)
        assert torch.equal(loaded.client("pen-1")(PIXELS), expected)
        assert not torch.equal(loaded.client("pen-1")(PIXELS), loaded.client("pen-1", Branch.CLEAN)(PIXELS))


def test_loaded_networks_give_the_recorded_answers(loaded: fedrbn.Trained, trained: Path) -> None:
    """SA of a client, computed from the deployed network and the client's data, is the one in the record."""
    (record,) = RunDirectory.open(trained).records("evaluations.jsonl")
    clients = {client.id: client for client in assemble(loaded.experiment).federation.clients}
    for name in ("plain-0", "texture-1"):
        x, y = clients[name].test.pixels(slice(None))
        with torch.no_grad():
            accuracy = (loaded.client(name)(x).argmax(1) == y).double().mean().item()
        assert record["users"][name]["sa"] == accuracy


def test_networks_of_two_clients_are_independent(loaded: fedrbn.Trained) -> None:
    first, second = loaded.client("pen-0"), loaded.client("pen-0")
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
        assert second(PIXELS).abs().sum() > 0


def test_a_newcomer_gets_the_shared_weights_with_everybodys_mean_batch_norm(tiny: Make, tmp_path: Path) -> None:
    runs.run(tiny(train={"rounds": 1}, federation={"partition": "dirichlet"}), tmp_path / "run")
    loaded = fedrbn.load(tmp_path / "run")
    counts = [member.samples for member in loaded.plan.members]
    assert len(set(counts)) > 1, "the mean is weighted by these"
    with torch.no_grad():
        logits = loaded.newcomer()(PIXELS)
    assert logits.shape == (5, 10)
    assert torch.isfinite(logits).all()
    for branch in Branch:  # BN_a belongs to AT users
        members = [m for m in loaded.plan.members if branch is Branch.CLEAN or m.role is Role.AT]
        weights = torch.tensor([m.samples for m in members], dtype=torch.float64)[:, None]
        weights = weights / weights.sum()
        own = [loaded.state.personal[m.id][f"network.bn1.{branch.value}.running_mean"] for m in members]
        found = dict(loaded.newcomer(branch).named_buffers())["bn1.running_mean"]
        expected = (weights * torch.stack(own)).sum(0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)
    noised = loaded.newcomer(Branch.NOISED)
    with torch.no_grad():
        assert torch.equal(logits, noised(PIXELS)), "the branch that the others predict with is the default"


def test_a_wrong_client_is_named_with_the_nearest(loaded: fedrbn.Trained) -> None:
    with pytest.raises(ValueError, match=r"got client 'pem-0'.*Did you mean 'pen-0'"):
        loaded.client("pem-0")
    assert loaded.clients[:3] == ("plain-0", "plain-1", "pen-0")
    assert [member.role for member in loaded.plan.members[:2]] == [Role.AT, Role.ST]


def test_a_checkpoint_of_another_federation_or_network_is_refused(trained: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    shutil.copytree(trained, path)
    described = json.loads((path / "federation.json").read_text())
    described["members"].append({"id": "pen-9", "domain": "pen", "role": "ST", "samples": 3})
    (path / "federation.json").write_text(json.dumps(described))
    with pytest.raises(StorageError, match="checkpoint without client 'pen-9'; expected all 11 clients"):
        fedrbn.load(path)
    shutil.copy(trained / "federation.json", path)
    config = (path / "config.toml").read_text()
    assert "width = 0.0625" in config
    (path / "config.toml").write_text(config.replace("width = 0.0625", "width = 0.125"))
    with pytest.raises(StorageError, match=r"model\.width = 0\.125 \(in the checkpoint 0\.0625\)"):
        fedrbn.load(path)


def test_config_errors_are_value_errors() -> None:
    assert issubclass(ConfigError, ValueError)
