"""Run directories: whole files or none, refusals, damage, what a crash leaves behind."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrbn.config import Experiment
from fedrbn.storage import Best, RunDirectory, StorageError, write_atomically
from fedrbn.types import Member, Role, ServerState


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", Experiment())


def state(number: int = 3) -> ServerState:
    return ServerState(
        round=number,
        shared={"fc.weight": torch.tensor([[1.0, 2.0]]), "fc.bias": torch.tensor([0.5])},
        personal={
            "pen-0": {"bn.mean": torch.tensor([0.1, 0.2]), "bn.count": torch.tensor(4)},
            "own/folder-1": {"bn.mean": torch.tensor([0.3, 0.4]), "bn.count": torch.tensor(5)},
        },
        reported={"pen-0": 2},
    )


def test_a_new_run_knows_its_config(tmp_path: Path) -> None:
    experiment = Experiment.model_validate({"train": {"rounds": 7}})
    path = tmp_path / "deep" / "run"
    RunDirectory.create(path, experiment)
    assert RunDirectory.open(path).experiment() == experiment


def test_checkpoints_come_back_bit_for_bit(directory: RunDirectory) -> None:
    directory.save("last", state(), Best(2, 0.75))
    found = directory.checkpoint("last")
    assert found is not None
    assert (found.state.round, found.state.reported, found.best) == (3, {"pen-0": 2}, Best(2, 0.75))
    assert found.state.personal.keys() == {"pen-0", "own/folder-1"}, "ids with a slash stay whole"
    for one, other in ((found.state.shared, state().shared), *zip_personal(found.state, state())):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert tensor.dtype == other[name].dtype
            assert torch.equal(tensor, other[name])
    directory.save("best", state(), None)
    best = directory.checkpoint("best")
    assert best is not None
    assert best.best is None


def zip_personal(one: ServerState, other: ServerState) -> list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    return [(one.personal[name], other.personal[name]) for name in other.personal]


def test_no_checkpoint_yet(directory: RunDirectory) -> None:
    assert directory.checkpoint("last") is None


def test_a_second_run_in_the_directory_is_refused_with_the_ways_out(directory: RunDirectory) -> None:
    with pytest.raises(StorageError, match=r"holds a run already.*--resume.*--force.*--out"):
        RunDirectory.create(directory.path, Experiment())


def test_force_removes_the_run_and_nothing_else(directory: RunDirectory) -> None:
    directory.save("last", state(), None)
    directory.save("best", state(), None)
    directory.append("rounds.jsonl", {"round": 1})
    directory.append("evaluations.jsonl", {"mean": {}})
    directory.save_tensors("answers/0.safetensors", {"a": torch.ones(2, dtype=torch.bool)})
    notes = directory.path / "notes.txt"
    notes.write_text("mine")
    changed = Experiment.model_validate({"train": {"rounds": 9}})
    again = RunDirectory.create(directory.path, changed, force=True)
    assert again.experiment() == changed
    assert again.checkpoint("last") is None
    assert again.checkpoint("best") is None
    assert again.records("rounds.jsonl") == again.records("evaluations.jsonl") == []
    assert not (again.path / "answers").exists()
    assert notes.read_text() == "mine"


def test_force_does_not_pull_a_run_away_from_the_process_that_writes_it(directory: RunDirectory) -> None:
    directory.save("last", state(), None)
    with directory.locked(), pytest.raises(StorageError, match="another process is writing"):
        RunDirectory.create(directory.path, Experiment(), force=True)
    assert directory.checkpoint("last") is not None


def test_places_that_are_no_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    file = tmp_path / "file"
    file.write_text("x")
    for place, force in ((tmp_path / "photos", False), (tmp_path / "photos", True), (file, False)):
        with pytest.raises(StorageError, match="not empty and not a run"):
            RunDirectory.create(place, Experiment(), force=force)
    with pytest.raises(StorageError, match="cannot be written"):
        RunDirectory.create(file / "below", Experiment())
    for place in (tmp_path / "photos", tmp_path / "missing"):
        with pytest.raises(StorageError, match="holds no run"):
            RunDirectory.open(place)


def test_an_empty_directory_and_one_where_a_run_was_killed_at_birth_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "born").mkdir()
    (tmp_path / "born" / ".config.toml.abc.tmp").write_text("[trai")
    for name in ("empty", "born"):
        RunDirectory.create(tmp_path / name, Experiment())


def test_only_one_process_may_write(directory: RunDirectory) -> None:
    with (
        directory.locked(),
        pytest.raises(StorageError, match="another process is writing"),
        RunDirectory.open(directory.path).locked(),
    ):
        pytest.fail("the second got in")
    with directory.locked():
        pass  # free again


def test_writes_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(_: Path, __: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="no space left"):
            write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the temporary file is gone"
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"


def damaged(content: bytes) -> dict[str, bytes]:
    foreign = safetensors.torch.save({"w": torch.ones(2)})
    other = safetensors.torch.save({"w": torch.ones(2)}, metadata={"fedrbn": json.dumps({"format": "other/9"})})
    text = safetensors.torch.save({"w": torch.ones(2)}, metadata={"fedrbn": "not json"})
    strange = safetensors.torch.save(
        {"w": torch.ones(2)},
        metadata={"fedrbn": json.dumps({"format": "fedrbn-state/1", "round": 1, "reported": {}, "best": None})},
    )
    return {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "one byte short": content[:-1],
        "noise": b"\x80\x04K\x01." * 20,
        "not ours": foreign,
        "another format": other,
        "metadata that is no JSON": text,
        "unknown tensor": strange,
    }


def test_damaged_checkpoints_are_refused_with_a_remedy(directory: RunDirectory) -> None:
    directory.save("last", state(), Best(1, 0.5))
    path = directory.path / "last.safetensors"
    for content in damaged(path.read_bytes()).values():
        path.write_bytes(content)
        with pytest.raises(StorageError, match=r"last\.safetensors, which cannot be read .* remove it"):
            directory.checkpoint("last")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_byte_gives_a_checkpoint_or_a_storage_error(directory: RunDirectory, data: st.DataObject) -> None:
    directory.save("last", state(), Best(1, 0.5))
    path = directory.path / "last.safetensors"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(StorageError):
        assert directory.checkpoint("last") is not None


def test_records_leave_out_a_line_that_was_cut_off(directory: RunDirectory) -> None:
    directory.append("rounds.jsonl", {"round": 1, "ε": "ü"})
    directory.append("rounds.jsonl", {"round": 2})
    path = directory.path / "rounds.jsonl"
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = whole[:length].count(b"\n")
        assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2][:complete]
    path.write_bytes(b"}{\n" + whole)
    with pytest.raises(StorageError, match="not JSON"):
        directory.records("rounds.jsonl")
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(StorageError, match="not JSON"):
        directory.records("rounds.jsonl")


def test_recovery_drops_what_the_checkpoint_does_not_know(directory: RunDirectory) -> None:
    for number in (1, 2, 3, 4):
        directory.append("rounds.jsonl", {"round": number})
    with (directory.path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 5, "los')
    directory.save("last", state(3), None)
    (directory.path / ".last.safetensors.x1.tmp").write_bytes(b"half")
    (directory.path / "answers").mkdir()
    (directory.path / "answers" / ".0.safetensors.x1.tmp").write_bytes(b"half")
    directory.recover()
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2, 3]
    assert list(directory.path.rglob("*.tmp")) == []
    directory.append("rounds.jsonl", {"round": 4})
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2, 3, 4]


def test_recovery_without_a_checkpoint_starts_from_nothing(directory: RunDirectory) -> None:
    directory.append("rounds.jsonl", {"round": 1})
    directory.recover()
    assert directory.records("rounds.jsonl") == []


def test_an_evaluation_cut_off_does_not_spoil_the_next(directory: RunDirectory) -> None:
    directory.append("evaluations.jsonl", {"number": 0})
    with (directory.path / "evaluations.jsonl").open("a") as file:
        file.write('{"number": 1, "mea')
    directory.recover()
    directory.append("evaluations.jsonl", {"number": 2})
    assert [record["number"] for record in directory.records("evaluations.jsonl")] == [0, 2]


def test_the_description_of_the_federation(directory: RunDirectory) -> None:
    members = (Member("pen-0", "pen", Role.AT, 12), Member("pen-1", "pen", Role.ST, 9))
    directory.describe(members, ["0", "1"], (3, 28, 28))
    assert directory.description() == (members, ("0", "1"), (3, 28, 28))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"members": [{}]}', '{"members": 3, "image_shape": [1]}'])
def test_a_damaged_description_is_refused(directory: RunDirectory, content: str) -> None:
    (directory.path / "federation.json").write_text(content)
    with pytest.raises(StorageError, match=r"federation\.json.*--resume"):
        directory.description()


def test_a_damaged_config_is_refused(directory: RunDirectory) -> None:
    for content in (b"[train]\nrouns = 3\n", b"[train", b"\xff\xfe"):
        (directory.path / "config.toml").write_bytes(content)
        with pytest.raises(StorageError, match="not a valid config"):
            directory.experiment()


def test_the_answers_of_the_newest_evaluation(directory: RunDirectory) -> None:
    for number, right in enumerate((False, True)):
        directory.append("evaluations.jsonl", {"number": number})
        directory.save_tensors(f"answers/{number}.safetensors", {"pen-0/ra[pgd:eps=8/255]": torch.tensor([right])})
    assert {name: own["ra[pgd:eps=8/255]"].tolist() for name, own in directory.answers().items()} == {"pen-0": [True]}


def test_named_tensors(directory: RunDirectory) -> None:
    directory.save_tensors("answers/0.safetensors", {"pen-0/clean": torch.tensor([True, False])})
    assert directory.load_tensors("answers/0.safetensors")["pen-0/clean"].tolist() == [True, False]
    for name in ("answers/1.safetensors", "config.toml"):
        with pytest.raises(StorageError, match="expected safetensors"):
            directory.load_tensors(name)
