"""What clients remember: found again as it was at any round that a run can continue from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedrbn.errors import StorageError
from fedrbn.federated.training.memory import recall, remember


def noise(value: float) -> dict[str, torch.Tensor]:
    return {"noise": torch.tensor([value])}


def files(store: Path, client: str = "a-0") -> list[str]:
    return sorted(path.name for path in (store / client).iterdir())


def test_what_was_remembered_at_or_before_a_round_is_recalled(tmp_path: Path) -> None:
    """The client took part in rounds 3 and 7: after 3 … 6 finished rounds it knows what it learnt in round 3."""
    remember(tmp_path, "a-0", 3, noise(3))
    remember(tmp_path, "a-0", 7, noise(7))
    assert recall(tmp_path, "a-0", 2) == {}
    assert [recall(tmp_path, "a-0", n)["noise"].item() for n in (3, 6, 7, 100)] == [3, 3, 7, 7]
    assert recall(tmp_path, "b-0", 100) == {}


def test_the_three_newest_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 9, 10):
        remember(tmp_path, "a-0", number, noise(number))
    assert files(tmp_path) == ["10.safetensors", "2.safetensors", "9.safetensors"]


def test_a_run_that_starts_again_further_back_does_not_see_the_course_it_left(tmp_path: Path) -> None:
    for number in (5, 6):
        remember(tmp_path, "a-0", number, noise(number))
    assert recall(tmp_path, "a-0", 0) == {}
    remember(tmp_path, "a-0", 1, noise(1.5))
    assert files(tmp_path) == ["1.safetensors"]
    assert recall(tmp_path, "a-0", 6)["noise"].item() == 1.5


def test_a_client_without_memory_leaves_no_trace(tmp_path: Path) -> None:
    remember(tmp_path, "a-0", 1, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("client", ["../a", "a/b", ".", "..", ".hidden", "", "ä", "a b", "a\n"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, client: str) -> None:
    for use in (lambda: recall(tmp_path, client, 1), lambda: remember(tmp_path, client, 1, noise(0))):
        with pytest.raises(StorageError, match="Rename the client"):
            use()


def test_without_a_store_only_a_first_round_works() -> None:
    remember(None, "a-0", 1, noise(1))
    assert recall(None, "a-0", 1) == {}
    with pytest.raises(StorageError, match=r"keeps noise between rounds, but no store; .* store="):
        remember(None, "a-0", 2, noise(1))


def test_a_damaged_memory_is_explained(tmp_path: Path) -> None:
    remember(tmp_path, "a-0", 1, noise(1))
    (tmp_path / "a-0" / "1.safetensors").write_bytes(b"half")
    with pytest.raises(StorageError, match="It is damaged: restore a copy, or run again from the beginning"):
        recall(tmp_path, "a-0", 1)
