"""Hostile files: whatever bytes a download holds, a reader gives data or a ValueError of ours, and nothing else."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import published
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from fedrbn.cli import raised_here
from fedrbn.data.images import decode
from fedrbn.data.prepare import read_checksums
from fedrbn.data.raw.idx import read_idx
from fedrbn.data.raw.mat import read_mat
from fedrbn.data.raw.mnist_m import read_labels
from fedrbn.data.raw.photographs import read_domainnet, read_parts
from fedrbn.data.raw.usps import read_libsvm


def _written(write: Callable[[Path], object], name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


def _mat(compress: bool) -> bytes:
    buffer = io.BytesIO()
    arrays = {"X": published.noise(0, 2, 2, 3, 2), "y": np.array([[1.0], [10.0]])}
    savemat(buffer, arrays, do_compression=compress)
    return buffer.getvalue()


def _photo(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(published.noise(1, 9, 7, 3)).save(buffer, format=kind)
    return buffer.getvalue()


def _zip(folder: Path) -> None:
    """As small as can be: one dot for each class."""
    dot = published.png(published.noise(0, 1, 1, 3))
    with zipfile.ZipFile(folder / "real.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in published.DOMAINNET:
            archive.writestr(f"real/{name}/x.png", dot)


def _read_zip(path: Path) -> None:
    for raw in read_domainnet(path):
        for photo in raw.photographs:
            decode(photo.content, photo.file_name, 4)


def _read_parts(path: Path) -> None:
    (path.parent / "real_test.txt").write_text("")
    read_parts(path.parent, "real")


# Name of the file, a whole one, and what reads it.
FORMATS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "idx": ("x", published.idx(published.noise(0, 2, 3, 3)), lambda path: read_idx(path, 3)),
    "idx.gz": (
        "train-labels-idx1-ubyte.gz",
        _written(published.mnist, "train-labels-idx1-ubyte.gz"),
        lambda path: read_idx(path, 1),
    ),
    "mat": ("x.mat", _mat(compress=False), read_mat),
    "mat, compressed": ("x.mat", _mat(compress=True), read_mat),
    "usps": ("usps", b"10 1:-1 2:-0.6 4:0.5 256:1\n1 3:0.25\n", read_libsvm),
    "usps.bz2": ("usps.bz2", _written(published.usps, "usps.t.bz2"), read_libsvm),
    "labels": ("labels.txt", b"00000000.png 5\n00000001.png 0\n", read_labels),
    "lists": ("real_train.txt", b"real/zebra/real_345_000001.jpg 344\nreal/bird/x.jpg 3\n", _read_parts),
    "zip": ("real.zip", _written(_zip, "real.zip"), _read_zip),
    "png": ("x.png", _photo("PNG"), lambda path: decode(path, "x.png", None)),
    "jpeg": ("x.jpg", _photo("JPEG"), lambda path: decode(path, "x.jpg", 8)),
    "checksums": ("checksums.json", b'{"mnist.npz": {"sha256": "00"}}', lambda path: read_checksums(path.parent)),
}


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """A whole file with bytes changed, cut out, doubled, and the end cut off."""
    result = bytearray(content)
    place = st.integers(0, len(content) - 1)
    for at, value in draw(st.lists(st.tuples(place, st.integers(0, 255)), max_size=6)):
        result[at] = value
    edit = draw(st.sampled_from(["none", "none", "cut", "remove", "double", "insert"]))
    start, end = sorted((draw(place), draw(place)))
    if edit == "cut":
        del result[start:]
    elif edit == "remove":
        del result[start:end]
    elif edit == "double":
        result[end:end] = result[start:end]
    elif edit == "insert":
        result[start:start] = draw(st.binary(max_size=16))
    return bytes(result)


def _survives(kind: str, content: bytes) -> None:
    name, _, read = FORMATS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        refused = _refusal(read, path)
    # Ours: the command line shows it as a message, without a traceback.
    assert refused is None or raised_here(refused), repr(refused)
    assert refused is None or ("got " in str(refused) and "expected " in str(refused)), repr(refused)


def _refusal(read: Callable[[Path], object], path: Path) -> ValueError | None:
    try:
        read(path)
    except ValueError as error:
        return error
    return None


@pytest.mark.parametrize("kind", FORMATS)
def test_whole_files_are_read(kind: str, tmp_path: Path) -> None:
    name, content, read = FORMATS[kind]
    (tmp_path / name).write_bytes(content)
    read(tmp_path / name)


def _fuzz(kind: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=examples < 1000, database=None)
    @given(content=mutated(FORMATS[kind][1]))
    def run(content: bytes) -> None:
        _survives(kind, content)

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_mutated_files(kind: str) -> None:
    _fuzz(kind, examples=60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_many_mutated_files(kind: str) -> None:
    _fuzz(kind, examples=3000)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(kind=st.sampled_from(sorted(FORMATS)), content=st.binary(max_size=200))
def test_files_of_anything(kind: str, content: bytes) -> None:
    _survives(kind, content)
