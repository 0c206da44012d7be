"""Run directories: whole files or none, refusals, damage, what a crash leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrbn.config import Experiment
from fedrbn.errors import StorageError
from fedrbn.federated.protocol import ServerState
from fedrbn.files import write_atomically
from fedrbn.runs.checkpoint import Best
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.recovery import StorageWarning, recover
from fedrbn.types import Member, Role
from full_disk import files_of_at_most


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
            "bare-0": {},
        },
        reported={"pen-0": 2},
        velocity={"fc.bias": torch.tensor([0.25])},
        missed={"own/folder-1": 2},
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
    assert found.state.missed == {"own/folder-1": 2}
    assert list(found.state.personal) == ["pen-0", "own/folder-1", "bare-0"], "ids with a slash, or of no batch norm"
    assert list(found.state.shared) == ["fc.weight", "fc.bias"], "in the order of the network"
    whole = [(found.state.shared, state().shared), (found.state.velocity, state().velocity)]
    for one, other in (*whole, *zip_personal(found.state, state())):
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
    with pytest.raises(StorageError, match=r"already holds a run.*--resume.*--force.*--out"):
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
    with directory.locked(), pytest.raises(StorageError, match="another process is using"):
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
    for place, cause in ((tmp_path / "photos", "holds no run"), (tmp_path / "missing", "which does not exist")):
        with pytest.raises(StorageError, match=cause):
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
        pytest.raises(StorageError, match="another process is using"),
        RunDirectory.open(directory.path).locked(),
    ):
        pytest.fail("the second got in")
    with directory.locked():
        pass  # free again


def test_writes_are_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    write_atomically(target, b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(StorageError, match=r"cannot be written \(no space left\); expected .* free some space"):
            write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the temporary file is gone"
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"


def damaged(content: bytes) -> dict[str, bytes]:
    foreign = safetensors.torch.save({"w": torch.ones(2)})
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


def test_a_checkpoint_of_another_version_is_refused_even_if_an_older_one_is_there(directory: RunDirectory) -> None:
    """It is whole: to go back behind it would be to lose what a newer version has trained."""
    directory.save("last", state(2), None)
    directory.save("last", state(3), None)
    newer = safetensors.torch.save({"w": torch.ones(2)}, metadata={"fedrbn": json.dumps({"format": "fedrbn-state/9"})})
    (directory.path / "last.safetensors").write_bytes(newer)
    for use in (lambda: recover(directory), lambda: directory.checkpoint("last")):
        with pytest.raises(StorageError, match=r"of format 'fedrbn-state/9'.*fedrbn-state/2\. Use the version"):
            use()


def test_checkpoints_from_before_there_were_digests_are_read(directory: RunDirectory) -> None:
    facts = {"format": "fedrbn-state/1", "round": 2, "reported": {"a": 1}, "best": [1, 0.5]}
    content = safetensors.torch.save({"shared/w": torch.ones(2)}, metadata={"fedrbn": json.dumps(facts)})
    (directory.path / "last.safetensors").write_bytes(content)
    found = directory.checkpoint("last")
    assert found is not None
    assert (found.state.round, found.state.reported, found.best) == (2, {"a": 1}, Best(1, 0.5))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_changed_byte_is_found_out(directory: RunDirectory, data: st.DataObject) -> None:
    """Either the very state that was written, or a StorageError: never other numbers."""
    directory.save("last", state(), Best(1, 0.5))
    path = directory.path / "last.safetensors"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(StorageError):
        found = directory.checkpoint("last")
        assert found is not None
        assert (found.state.round, found.state.reported, found.best) == (3, {"pen-0": 2}, Best(1, 0.5))
        for one, other in ((found.state.shared, state().shared), *zip_personal(found.state, state())):
            assert one.keys() == other.keys()
            assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def write(directory: RunDirectory, *rounds: tuple[int, int]) -> None:
    """Checkpoints of a run: for each round its number and the best round so far."""
    for number, chosen in rounds:
        if chosen == number:
            directory.save("best", state(chosen), Best(chosen, chosen / 10))
        directory.append("rounds.jsonl", {"round": number})
        directory.save("last", state(number), Best(chosen, chosen / 10))


def rounds_in(directory: RunDirectory) -> tuple[int | None, int | None]:
    """The rounds of the last and of the best checkpoint."""
    last, best = directory.checkpoint("last"), directory.checkpoint("best")
    return (last.state.round if last else None), (best.state.round if best else None)


def damage(directory: RunDirectory, name: str) -> None:
    path = directory.path / f"{name}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # one bit of the last number
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_found_out_and_the_one_before_it_used(directory: RunDirectory) -> None:
    write(directory, (1, 1), (2, 1), (3, 1))
    damage(directory, "last")
    with pytest.warns(StorageWarning, match=r"digest does not match its content.*The run continues from round 2"):
        recover(directory)
    assert rounds_in(directory) == (2, 1)
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2]
    write(directory, (3, 1))
    recover(directory)
    assert rounds_in(directory) == (3, 1)


def test_a_missing_last_checkpoint_is_the_one_before_it(directory: RunDirectory) -> None:
    """As after a kill between the two renames of a save."""
    write(directory, (1, 1), (2, 1))
    (directory.path / "last.safetensors").replace(directory.path / "last.previous.safetensors")
    recover(directory)
    assert rounds_in(directory) == (2, 1)


def test_a_best_state_of_a_round_that_was_not_finished_is_taken_back(directory: RunDirectory) -> None:
    write(directory, (1, 1), (2, 1))
    for _ in range(3):  # killed again and again after the best state of round 3 is written and before the last one is
        directory.save("best", state(3), Best(3, 0.3))
        recover(directory)
        assert rounds_in(directory) == (2, 1)


def test_a_best_state_before_the_first_round_was_finished_is_dropped(directory: RunDirectory) -> None:
    directory.save("best", state(1), Best(1, 0.1))
    recover(directory)
    assert rounds_in(directory) == (None, None)


def test_with_a_damaged_best_state_the_run_goes_back_behind_it(directory: RunDirectory) -> None:
    """Round 3 was the best so far; the checkpoint of round 2 speaks of round 1, which is still there."""
    write(directory, (1, 1), (2, 1), (3, 3))
    damage(directory, "best")
    with pytest.warns(StorageWarning, match=r"best\.safetensors.*continues from round 2"):
        recover(directory)
    assert rounds_in(directory) == (2, 1)


def test_nothing_whole_is_refused_and_nothing_removed(directory: RunDirectory) -> None:
    write(directory, (1, 1), (2, 1))
    damage(directory, "last")
    damage(directory, "last.previous")
    before = {path.name: path.read_bytes() for path in directory.path.glob("*.safetensors")}
    with pytest.raises(StorageError, match=r"last\.safetensors, which cannot be read.*remove it and continue"):
        recover(directory)
    assert {path.name: path.read_bytes() for path in directory.path.glob("*.safetensors")} == before


def test_a_best_state_that_is_gone_is_refused(directory: RunDirectory) -> None:
    write(directory, (1, 1), (2, 1), (3, 1))
    (directory.path / "best.safetensors").unlink()
    with pytest.raises(StorageError, match=r"without the best state.*from the beginning and gives the same result"):
        recover(directory)


WRITES: dict[str, Callable[[RunDirectory], None]] = {
    "last": lambda directory: directory.save("last", state(3), None),
    "best": lambda directory: directory.save("best", state(3), None),
    "answers": lambda directory: directory.save_tensors("answers.safetensors", {"a": torch.ones(500)}),
    "description": lambda d: d.describe([Member("pen-0", "pen", Role.AT.duty, 12)] * 9, ["0"], (3, 28, 28)),
    "line": lambda directory: directory.append("rounds.jsonl", {"round": 3, "clients": "x" * 500}),
}


@pytest.mark.parametrize("what", WRITES)
def test_a_full_disk_is_an_error_with_a_remedy_and_what_was_there_stays(directory: RunDirectory, what: str) -> None:
    write(directory, (1, 1), (2, 1))
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    with (
        files_of_at_most(len(before["rounds.jsonl"]) + 5),
        pytest.raises(StorageError, match=r"cannot be written \(File too large\); expected .* free some space"),
    ):
        WRITES[what](directory)
    after = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    assert after.keys() == before.keys(), "no half-written file is left"
    assert after.pop("rounds.jsonl").startswith(before.pop("rounds.jsonl")), "a line may be cut off"
    assert after == before
    recover(directory)
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file system that even root cannot write to")
def test_a_read_only_directory_is_refused() -> None:
    nowhere = RunDirectory(Path("/proc/self"))
    with pytest.raises(StorageError, match=r"cannot be written \(.*\); expected .*change the permissions"):
        nowhere.save("last", state(), None)
    with pytest.raises(StorageError, match="cannot be written"), nowhere.locked():
        pytest.fail("it was locked")
    with pytest.raises(StorageError, match="cannot be written"):
        RunDirectory.create(Path("/proc/self/run"), Experiment())


def test_a_directory_that_has_gone_is_refused(directory: RunDirectory) -> None:
    shutil.rmtree(directory.path)
    for attempt in (
        lambda: directory.save("last", state(), None),
        lambda: directory.append("rounds.jsonl", {"round": 1}),
        lambda: directory.locked().__enter__(),
    ):
        with pytest.raises(StorageError, match=r"cannot be written \(No such file or directory\)"):
            attempt()


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
    recover(directory)
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2, 3]
    assert list(directory.path.rglob("*.tmp")) == []
    directory.append("rounds.jsonl", {"round": 4})
    assert [record["round"] for record in directory.records("rounds.jsonl")] == [1, 2, 3, 4]


def test_recovery_without_a_checkpoint_starts_from_nothing(directory: RunDirectory) -> None:
    directory.append("rounds.jsonl", {"round": 1})
    recover(directory)
    assert directory.records("rounds.jsonl") == []


def test_an_evaluation_cut_off_does_not_spoil_the_next(directory: RunDirectory) -> None:
    directory.append("evaluations.jsonl", {"number": 0})
    with (directory.path / "evaluations.jsonl").open("a") as file:
        file.write('{"number": 1, "mea')
    recover(directory)
    directory.append("evaluations.jsonl", {"number": 2})
    assert [record["number"] for record in directory.records("evaluations.jsonl")] == [0, 2]


def test_the_description_of_the_federation(directory: RunDirectory) -> None:
    members = (Member("pen-0", "pen", Role.AT.duty, 12), Member("pen-1", "pen", Role.ST.duty, 9))
    directory.describe(members, ["0", "1"], (3, 28, 28))
    assert directory.description() == (members, ("0", "1"), (3, 28, 28))


def _federation(samples: int) -> str:
    member = {"id": "a", "domain": "d", "role": "AT", "samples": samples}
    return json.dumps({"members": [member], "classes": ["0", "1"], "image_shape": [3, 8, 8]})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"members": [{}]}',
        '{"members": 3, "image_shape": [1]}',
        _federation(-1),
        _federation(10**4000),
    ],
)
def test_a_damaged_description_is_refused(directory: RunDirectory, content: str) -> None:
    (directory.path / "federation.json").write_text(content)
    with pytest.raises(StorageError, match=r"federation\.json.*--resume"):
        directory.description()


def test_a_damaged_config_is_refused(directory: RunDirectory) -> None:
    for content in (b"[train]\nrouns = 3\n", b"[train", b"\xff\xfe"):
        (directory.path / "config.toml").write_bytes(content)
        with pytest.raises(StorageError, match="not a valid config"):
            RunDirectory.open(directory.path).experiment()


def test_the_answers_of_the_newest_evaluation(directory: RunDirectory) -> None:
    for number, right in enumerate((False, True)):
        directory.append("evaluations.jsonl", {"number": number})
        directory.save_tensors(f"answers/{number}.safetensors", {"pen-0/ra[pgd:eps=8/255]": torch.tensor([right])})
    assert {name: own["ra[pgd:eps=8/255]"].tolist() for name, own in directory.answers().items()} == {"pen-0": [True]}


def test_named_tensors(directory: RunDirectory) -> None:
    directory.save_tensors("answers/0.safetensors", {"pen-0/clean": torch.tensor([True, False])})
    assert directory.load_tensors("answers/0.safetensors")["pen-0/clean"].tolist() == [True, False]
    for name, expected in (
        ("answers/1.safetensors", "expected a readable file"),
        ("config.toml", "expected safetensors"),
    ):
        with pytest.raises(StorageError, match=expected):
            directory.load_tensors(name)
