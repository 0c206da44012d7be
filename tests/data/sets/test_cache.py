from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrbn.data.samples import Samples
from fedrbn.data.sets.cache import Expected, TrainAndTest, cache_folder, cached

EXPECTED = Expected(train=3, test=2, shape=(3, 4, 4), classes=10)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path))
    return tmp_path


def _parts(pixel: int = 7, train: int = 3, label: int = 9, side: int = 4) -> TrainAndTest:
    def samples(count: int) -> Samples:
        return Samples(torch.full((count, 3, side, side), pixel, dtype=torch.uint8), torch.full((count,), label))

    return samples(train), samples(2)


def _pixel(parts: TrainAndTest) -> int:
    return int(parts[0].images[0, 0, 0, 0])


def test_the_second_time_nothing_is_made(folder: Path) -> None:
    cached("key", EXPECTED, lambda: _parts(1))
    train, test = cached("key", EXPECTED, lambda: _parts(2))
    assert _pixel((train, test)) == 1
    assert (len(train), len(test)) == (3, 2)
    assert train.labels.tolist() == [9, 9, 9]
    assert [path.name for path in folder.iterdir()] == ["key.npz"]


def test_keys_are_apart(folder: Path) -> None:
    cached("v1", EXPECTED, lambda: _parts(1))
    assert _pixel(cached("v2", EXPECTED, lambda: _parts(2))) == 2


@pytest.mark.parametrize("wrong", [_parts(1, train=4), _parts(1, label=10), _parts(1, label=-1), _parts(1, side=5)])
def test_unexpected_contents_are_made_again(folder: Path, wrong: TrainAndTest) -> None:
    cached("key", EXPECTED, lambda: wrong)
    assert _pixel(cached("key", EXPECTED, lambda: _parts(2))) == 2
    assert _pixel(cached("key", EXPECTED, lambda: _parts(3))) == 2  # and stored


def test_damaged_files_are_made_again(folder: Path) -> None:
    cached("key", EXPECTED, lambda: _parts(1))
    whole = (folder / "key.npz").read_bytes()
    for damaged in (b"", b"no archive", whole[: len(whole) // 2], whole.replace(b"\x01" * 20, b"\x02" * 20)):
        (folder / "key.npz").write_bytes(damaged)
        assert _pixel(cached("key", EXPECTED, lambda: _parts(5))) == 5


def test_wrong_types_and_pickled_objects_are_made_again(folder: Path) -> None:
    images, labels = np.zeros((3, 3, 4, 4)), np.zeros(3, dtype=np.int64)
    np.savez(folder / "key.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    assert _pixel(cached("key", EXPECTED, lambda: _parts(5))) == 5
    objects = np.array([{"an": "object"}], dtype=object)
    np.savez(folder / "key.npz", train_images=objects, train_labels=labels, test_images=images, test_labels=labels)
    assert _pixel(cached("key", EXPECTED, lambda: _parts(6))) == 6


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path / "file" / "below"))
    assert _pixel(cached("key", EXPECTED, lambda: _parts(4))) == 4


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("FEDRBN_CACHE")
    assert cache_folder() == tmp_path / "xdg" / "fedrbn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "fedrbn"


def _write_often(pixel: int) -> bool:
    """Remake the entry again and again; every answer must be whole, whoever wrote it."""
    for _ in range(30):
        (cache_folder() / "key.npz").unlink(missing_ok=True)
        train, test = cached("key", EXPECTED, lambda: _parts(pixel))
        if len(train) != 3 or len(test) != 2 or train.images.unique().numel() != 1:
            return False
    return True


@pytest.mark.slow
def test_two_processes_at_once(folder: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_write_often, [1, 2]) == [True, True]
    assert [path.name for path in folder.iterdir()] == ["key.npz"]
