"""A checkpoint belongs to one experiment, and a resumed run to what its clients remembered."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch

import fedrbn
from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.training.memory import recall, remember
from fedrbn.runs import train as runs
from fedrbn.runs.checkpoint import digest
from fedrbn.runs.directory import RunDirectory

SETTINGS: dict[str, Any] = {
    "data": {"domains": ["plain"]},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 2},
    "model": {"width": 1 / 16},
    "train": {"rounds": 3, "validate_every": 1, "lr": 0.05},
    "attack": {"steps": 1},
    "run": {"workers": 1, "seed": 1},
}
SMALL = config.with_settings(SETTINGS, [("data", "image_size", 16)])
REMEMBERING = {
    "fatavg-free": config.with_settings(SMALL, [("method", "name", "fatavg-free"), ("method", "replays", 1)]),
    "fedrob": config.with_settings(SMALL, [("method", "name", "fedrob")]),
}
"""Methods whose AT user, plain-0, carries something on from round to round: noise, or an affine map."""


class StopAfter:
    """A watcher that ends the run after a round."""

    def __init__(self, number: int) -> None:
        self.number = number

    def training(self, *_: object) -> None: ...

    def answered(self, *_: object) -> None: ...

    def evaluating(self, *_: object) -> None: ...

    def round_finished(self, record: RoundRecord) -> None:
        if record.round == self.number:
            raise KeyboardInterrupt


def half(values: dict[str, Any], path: Path) -> Path:
    with contextlib.suppress(KeyboardInterrupt):
        runs.run(config.make(values), path, watcher=StopAfter(2))
    return path


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return half(SETTINGS, tmp_path_factory.mktemp("origin") / "half")


@pytest.fixture(scope="module", params=REMEMBERING)
def remembering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients remember, stopped after two rounds."""
    return half(REMEMBERING[request.param], tmp_path_factory.mktemp("origin") / str(request.param))


@pytest.fixture
def copy(interrupted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


@pytest.fixture
def memory_copy(remembering: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(remembering, tmp_path / "run"))


def edit(path: Path, key: str, value: Any) -> None:
    """Change one setting of a run's config."""
    section, _, name = key.partition(".")
    changed = config.with_settings(
        RunDirectory.open(path).experiment().model_dump(mode="json", exclude_none=True), [(section, name, value)]
    )
    (path / "config.toml").write_text(config.from_values(changed).to_toml())


def without(path: Path, *keys: str) -> None:
    """Make a checkpoint one of a version that did not write these facts."""
    with safetensors.safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["fedrbn"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    facts = {key: value for key, value in facts.items() if key not in (*keys, "digest")}
    facts["digest"] = digest(tensors, facts)
    path.write_bytes(safetensors.torch.save(tensors, metadata={"fedrbn": json.dumps(facts)}))


class TestExperiment:
    @pytest.mark.parametrize(
        ("key", "value", "before"),
        [
            ("run.seed", 2, "1"),
            ("train.lr", 0.1, "0.05"),
            ("attack.eps", 0.01, r"0\.03.*"),
            ("federation.fraction", 0.05, "0.03"),
            ("train.rounds", 5, "3"),
        ],
    )
    def test_a_config_edited_midway_is_refused_with_both_values(
        self, key: str, value: float, before: str, copy: Path
    ) -> None:
        edit(copy, key, value)
        for use in (runs.resume, fedrbn.load):
            with pytest.raises(StorageError, match=rf"{key} = {value} \(in the checkpoint {before}\); expected"):
                use(copy)

    @pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
    @pytest.mark.parametrize(
        ("section", "key"),
        [
            (section, key)
            for section, field in Experiment.model_fields.items()
            for key in field.annotation.model_fields  # type: ignore[union-attr]
            if (section, key) not in (("run", "workers"), ("run", "out"))
        ],
    )
    def test_every_other_setting_belongs_to_the_checkpoint(self, section: str, key: str) -> None:
        one = config.make(SETTINGS)
        changed = getattr(one, section).model_copy(update={key: "changed"})
        other = one.model_copy(update={section: changed})
        assert [name for name, _, _ in one.differences(other)] == [f"{section}.{key}"]

    def test_one_client_and_all_clients_are_not_the_same(self) -> None:
        one, every = (Experiment.model_validate({"faults": {"min_clients": value}}) for value in (1, 1.0))
        assert one.differences(every) == [("faults.min_clients", 1, 1.0)]

    def test_settings_that_decide_no_number_may_change(self, copy: Path) -> None:
        edit(copy, "run.workers", 2)
        edit(copy, "run.out", "elsewhere")
        assert fedrbn.load(copy).state.round >= 1

    def test_a_checkpoint_of_another_seed_is_refused_by_evaluate(self, interrupted: Path, tmp_path: Path) -> None:
        mine, other = tmp_path / "mine", tmp_path / "other"
        one_round = config.with_settings(SETTINGS, [("train", "rounds", 1)])
        for path, seed in ((mine, 1), (other, 2)):
            runs.run(config.make(config.with_settings(one_round, [("run", "seed", seed)])), path)
        shutil.copy(other / "best.safetensors", mine)
        with pytest.raises(StorageError, match=r"run\.seed = 1 \(in the checkpoint 2\)"):
            runs.evaluate(mine)
        assert len(RunDirectory.open(mine).records("evaluations.jsonl")) == 1

    def test_a_checkpoint_that_does_not_say_whose_it_is_is_accepted(self, copy: Path) -> None:
        for path in copy.glob("*.safetensors"):
            without(path, "experiment", "memory")
        assert fedrbn.load(copy).state.round >= 1
        assert runs.resume(copy)["round"] >= 1

    def test_the_config_that_counts_is_the_one_the_run_began_with(self, tmp_path: Path) -> None:
        """Edited while the run is going on: what is trained is still of the first settings, and says so."""
        run = RunDirectory.create(tmp_path / "run", config.make(SETTINGS))
        edit(run.path, "train.lr", 0.5)
        run.save("last", ServerState(1, {}, {}), None)
        with pytest.raises(StorageError, match=r"train\.lr = 0\.5 \(in the checkpoint 0\.05\)"):
            RunDirectory.open(run.path).checkpoint("last")

    def test_differences_name_what_one_side_left_open(self) -> None:
        one, other = Experiment(), Experiment.model_validate({"faults": {"deadline_seconds": 3.0}})
        assert one.differences(other) == [("faults.deadline_seconds", None, 3.0)]
        assert one.differences(Experiment.model_validate({"run": {"workers": 7, "out": "x"}})) == []


def lose_all(run: Path) -> None:
    shutil.rmtree(run / "clients")


def lose_newest(run: Path) -> None:
    (run / "clients" / "plain-0" / "2.safetensors").unlink()


def exchange(run: Path) -> None:
    folder = run / "clients" / "plain-0"
    (folder / "2.safetensors").write_bytes((folder / "1.safetensors").read_bytes())


def resealed(content: bytes) -> bytes:
    """Other numbers under the digest of the first ones."""
    header = 8 + int.from_bytes(content[:8], "little")
    return content[:header] + bytes(len(content) - header)


CONTENT: dict[str, Callable[[bytes], bytes]] = {
    "a bit of the last number": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "all numbers zero": resealed,
    "cut off": lambda content: content[:-4],
    "empty": lambda _: b"",
    "longer": lambda content: content + b"x",
}


@pytest.fixture(scope="module")
def of_several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedRob with two AT users, stopped after two rounds."""
    settings = config.with_settings(REMEMBERING["fedrob"], [("federation", "users_per_domain", 4)])
    return half(settings, tmp_path_factory.mktemp("origin") / "several")


class TestMemory:
    @pytest.mark.parametrize(
        ("loss", "told"),
        [
            (lose_all, r"nothing in .*plain-0; expected the memory of client 'plain-0' of round 2"),
            (lose_newest, r"the memory of round 1 with digest .* the memory of client 'plain-0' of round 2 \(digest"),
            (exchange, r"the memory of round 2 with digest .* the memory of client 'plain-0' of round 2 \(digest"),
        ],
    )
    def test_a_run_whose_clients_forgot_is_refused(
        self, loss: Callable[[Path], None], told: str, memory_copy: Path
    ) -> None:
        loss(memory_copy)
        with pytest.raises(StorageError, match=rf"{told}.*Restore a copy of the folder, or train again"):
            runs.resume(memory_copy)

    def test_one_that_noted_nothing_is_held_to_what_is_certain(self, memory_copy: Path) -> None:
        without(memory_copy / "last.safetensors", "memory")
        lose_newest(memory_copy)
        told = r"the memory of round 1 in .*the memory of client 'plain-0' of round 2\. Restore a copy"
        with pytest.raises(StorageError, match=told):
            runs.resume(memory_copy)

    @pytest.mark.parametrize("harm", CONTENT)
    def test_a_changed_file_is_refused_even_if_the_round_could_do_without_its_client(
        self, harm: str, of_several: Path, tmp_path: Path
    ) -> None:
        """Two AT users, of which faults.min_clients = 0.5 needs one."""
        copy = Path(shutil.copytree(of_several, tmp_path / "run"))
        path = copy / "clients" / "plain-0" / "2.safetensors"
        path.write_bytes(CONTENT[harm](path.read_bytes()))
        with pytest.raises(StorageError, match=r"clients/plain-0"):
            runs.resume(copy)
        assert len(RunDirectory.open(copy).records("rounds.jsonl")) == 2, "nothing was trained"

    def test_a_file_of_another_client_is_refused(self, of_several: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(of_several, tmp_path / "run"))
        shutil.copy(copy / "clients/plain-1/2.safetensors", copy / "clients/plain-0/2.safetensors")
        with pytest.raises(StorageError, match=r"expected the memory of client 'plain-0' of round 2"):
            runs.resume(copy)

    def test_a_memory_that_the_checkpoint_does_not_know_is_refused(self, of_several: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(of_several, tmp_path / "run"))
        remember(copy / "clients", "plain-3", 1, {"x": torch.ones(2)})
        with pytest.raises(StorageError, match=r"a memory in .*plain-3; expected none of client 'plain-3'"):
            runs.resume(copy)

    def test_only_rounds_that_a_client_can_have_finished_are_read(self, tmp_path: Path) -> None:
        """Nobody has a memory before the first round; 02 is not how a round is written."""
        remember(tmp_path / "clients", "plain-0", 1, {"x": torch.ones(2)})
        folder = tmp_path / "clients" / "plain-0"
        for name in ("0.safetensors", "00.safetensors", "02.safetensors"):
            shutil.copy(folder / "1.safetensors", folder / name)
        assert recall(tmp_path / "clients", "plain-0", 0) == {}
        assert recall(tmp_path / "clients", "plain-0", 2)["x"].tolist() == [1, 1]

    def test_with_its_memory_it_ends_as_if_nothing_had_happened(self, memory_copy: Path, tmp_path: Path) -> None:
        runs.resume(memory_copy)
        runs.run(RunDirectory.open(memory_copy).experiment(), tmp_path / "whole")
        for name in ("last.safetensors", "best.safetensors"):
            assert (memory_copy / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    def test_a_method_without_memory_needs_none(self, copy: Path) -> None:
        assert not (copy / "clients").exists()
        assert runs.resume(copy)["round"] >= 1
