"""Hostile data files: every format that is read, with bytes changed at random and with structures that lie."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

from data import published
from fedrbn.data.check import check_folder
from fedrbn.data.prepare import changed_files, prepare
from fedrbn.data.raw.idx import read_idx
from fedrbn.data.raw.mat import read_mat
from fedrbn.data.raw.mnist_m import read_labels, read_mnist_m
from fedrbn.data.raw.photographs import read_domainnet, read_parts
from fedrbn.data.raw.usps import read_libsvm, read_usps
from fedrbn.data.sets import cache, digits, photographs
from fedrbn.data.sets.folder import decode, image_folder
from fuzz.cases import ACCEPTED, REFUSED, Subject, command
from fuzz.mutations import ODD_PATHS, another_json, mutated, texts


@dataclass(frozen=True)
class Format:
    """A file that is read: its name, a whole one, and what reads it."""

    name: str
    whole: bytes
    read: Callable[[Path], object]
    weight: int = 6


def written(write: Callable[[Path], object], name: str) -> bytes:
    """One of the files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


def mat(compress: bool) -> bytes:
    buffer = io.BytesIO()
    arrays = {"X": published.noise(0, 2, 2, 3, 2), "y": np.array([[1.0], [10.0]])}
    savemat(buffer, arrays, do_compression=compress)
    return buffer.getvalue()


def photo(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(published.noise(1, 9, 7, 3)).save(buffer, format=kind)
    return buffer.getvalue()


def small_zip(folder: Path) -> None:
    """As small as can be: one dot for each class."""
    dot = published.png(published.noise(0, 1, 1, 3))
    with zipfile.ZipFile(folder / "real.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in published.DOMAINNET:
            archive.writestr(f"real/{name}/x.png", dot)


def usps_h5(folder: Path) -> None:
    with h5py.File(folder / "usps.h5", "w") as file:
        for part in ("train", "test"):
            file[f"{part}/data"] = published.noise(0, 3, 256) / 255
            file[f"{part}/target"] = np.arange(3)


def digits_npz(compress: bool = False) -> bytes:
    arrays = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = published.noise(0, 3, 9, 9), published.digits(0, 3)
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def cache_npz() -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = published.noise(0, 3, 3, 9, 9), np.arange(3)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def photographs_npz() -> bytes:
    contents = [photo("PNG"), photo("JPEG"), photo("PNG"), photo("PNG")]
    buffer = io.BytesIO()
    np.savez(
        buffer,
        jpeg_data=np.frombuffer(b"".join(contents), np.uint8),
        offsets=np.cumsum([0, *map(len, contents)]),
        labels=np.array([0, 0, 1, 1], np.uint8),
        class_names=np.array(["bike", "mug"]),
        test=np.array([True, False, True, False]),
    )
    return buffer.getvalue()


def read_zip(path: Path) -> None:
    for raw in read_domainnet(path):
        for photograph in raw.photographs:
            decode(photograph.content, photograph.file_name, 4)


def read_lists(path: Path) -> None:
    (path.parent / "real_test.txt").write_text("")
    read_parts(path.parent, "real")


def read_digits(path: Path) -> None:
    digits._real(path.parent, path.stem, 8)


def read_photographs(path: Path) -> None:
    arrays = photographs._archive(path, (*photographs._ARRAYS, "test"))
    photographs._domain("amazon", arrays, 8)


def read_cache(path: Path) -> str:
    """A cached file that is not as expected is made anew, without a word."""
    return ACCEPTED if cache._read(path, cache.Expected(3, 3, (3, 9, 9), 10)) else REFUSED


def prepare_folder(kind: str) -> Callable[[Path], object]:
    return lambda path: prepare(path.parent, kind, path.parent / "out")


FORMATS: dict[str, Format] = {
    "idx": Format("x", published.idx(published.noise(0, 2, 3, 3)), lambda path: read_idx(path, 3)),
    "idx.gz": Format(
        "train-labels-idx1-ubyte.gz",
        written(published.mnist, "train-labels-idx1-ubyte.gz"),
        lambda path: read_idx(path, 1),
    ),
    "mat": Format("x.mat", mat(compress=False), read_mat),
    "mat, compressed": Format("x.mat", mat(compress=True), read_mat),
    "LIBSVM text": Format("usps", b"10 1:-1 2:-0.6 4:0.5 256:1\n1 3:0.25\n", read_libsvm),
    "LIBSVM bz2": Format("usps.bz2", written(published.usps, "usps.t.bz2"), read_libsvm),
    "HDF5": Format("usps.h5", written(usps_h5, "usps.h5"), lambda path: read_usps(path.parent)),
    "list of labels": Format("labels.txt", b"00000000.png 5\n00000001.png 0\n", read_labels),
    "list of parts": Format("real_train.txt", b"real/zebra/real_345_01.jpg 344\nreal/bird/x.jpg 3\n", read_lists),
    "zip of photographs": Format("real.zip", written(small_zip, "real.zip"), read_zip, weight=3),
    "PNG": Format("x.png", photo("PNG"), lambda path: decode(path, "x.png", None)),
    "JPEG": Format("x.jpg", photo("JPEG"), lambda path: decode(path, "x.jpg", 8)),
    "checksums": Format("checksums.json", b'{"mnist.npz": {"sha256": "00"}}', lambda path: changed_files(path.parent)),
    "npz of digits": Format("mnist.npz", digits_npz(), read_digits),
    "npz of digits, compressed": Format("mnist.npz", digits_npz(compress=True), read_digits),
    "npz of photographs": Format("amazon.npz", photographs_npz(), read_photographs),
    "npz of the cache": Format("k.npz", cache_npz(), read_cache),
}


def try_format(kind: str) -> Callable[[bytes, Path], object]:
    def attempt(content: bytes, folder: Path) -> object:
        (folder / FORMATS[kind].name).write_bytes(content)
        return FORMATS[kind].read(folder / FORMATS[kind].name)

    return attempt


NPY = [
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 9, 9), }",
    "{'descr': '|u1', 'fortran_order': True, 'shape': (10000000000000,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 9, -9), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '|V0', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 0, 0), }",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (18446744073709551617,), }",
    "((((((((((((((((((((((((((((((((((((((((((((((((",
    "{'descr': '|u1', 'shape': (3,)}",
    "__import__('os').system('true')",
]


@st.composite
def lying_npz(draw: st.DrawFn) -> bytes:
    """An archive of arrays whose headers claim what is not there."""
    buffer = io.BytesIO()
    how = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name in ("train_images", "train_labels", "test_images", "test_labels"):
            header = draw(st.sampled_from(NPY)).encode()
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            size = draw(st.sampled_from([len(header), len(header), 0, 65535]))
            start = b"\x93NUMPY" + draw(st.sampled_from([b"\1\0", b"\1\0", b"\2\0", b"\7\7"]))
            archive.writestr(f"{name}.npy", start + size.to_bytes(2, "little") + header + b"\1" * 243)
    return buffer.getvalue()


@st.composite
def zip_names(draw: st.DrawFn) -> list[str]:
    """Members that would like to be somewhere else."""
    path = st.sampled_from(ODD_PATHS)
    return draw(st.lists(st.one_of(path, path.map(lambda p: f"real/bird/{p}"), texts), min_size=1, max_size=5))


def try_zip_names(names: list[str], folder: Path) -> None:
    with zipfile.ZipFile(folder / "real.zip", "w") as archive:
        dot = published.png(published.noise(0, 1, 1, 3))
        for name in [*(f"real/{label}/x.png" for label in published.DOMAINNET), *dict.fromkeys(names)]:
            member = zipfile.ZipInfo("placeholder")
            member.filename = name.encode("utf-8", errors="replace").decode()  # ZipInfo would tidy it up
            archive.writestr(member, dot)
    made = prepare(folder / "real.zip", "domainnet", folder / "out")
    assert {path.relative_to(folder).as_posix() for path in made} == {"out/domainnet/real.npz"}


def try_listed_names(names: list[str], folder: Path) -> None:
    """Names in a list of labels that point elsewhere are refused; nothing outside the folder is read as an image."""
    for part in ("train", "test"):
        (folder / f"mnist_m_{part}").mkdir()
        (folder / f"mnist_m_{part}" / "0.png").write_bytes(published.png(published.noise(0, 32, 32, 3)))
        lines = "".join(f"{name} 3\n" for name in ["0.png", *names])
        (folder / f"mnist_m_{part}_labels.txt").write_bytes(lines.encode("utf-8", errors="surrogatepass"))
    read_mnist_m(folder)


@st.composite
def image_trees(draw: st.DrawFn) -> list[tuple[str, str, bytes | None]]:
    """Domains, classes and files of an image folder; None is a folder or a link instead of a file."""
    odd = st.sampled_from(["train", "test", "é", " ", "x:y", "n\nl", "-rf", "0", "\u202e", "a" * 200, ".hidden"])
    part = odd if draw(st.booleans()) else st.sampled_from(["a"])
    content = st.one_of(mutated(photo("PNG")), st.just(photo("PNG")), st.just(photo("PNG")), st.just(b""), st.none())
    return [
        (draw(part), f"{draw(part)}/{draw(st.sampled_from(['1', '2', '3']))}.png", draw(content))
        for _ in range(draw(st.integers(1, 8)))
    ]


def try_image_tree(tree: list[tuple[str, str, bytes | None]], folder: Path) -> None:
    for number, (domain, name, content) in enumerate(tree):
        path = folder / "root" / domain / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            continue
        if content is not None:
            path.write_bytes(content)
        elif number % 3 == 0:
            path.mkdir()
        else:
            path.symlink_to(path.name if number % 3 == 1 else "/dev/zero")
    report = check_folder(folder / "root")
    assert report.passed in (True, False)
    image_folder(folder / "root", 8)


def try_data_commands(content: bytes, folder: Path) -> str:
    """The commands about data, on a folder with one damaged picture."""
    for domain in ("a", "b"):
        for number in range(2):
            (folder / "root" / domain / "mug").mkdir(parents=True, exist_ok=True)
            (folder / "root" / domain / "mug" / f"{number}.png").write_bytes(photo("PNG"))
    (folder / "root" / "a" / "mug" / "9.png").write_bytes(content)
    command("data", "check", str(folder / "root"))
    return command("data", "preview", str(folder / "root"), "--out", str(folder / "sheet.png"))


SUBJECTS = [
    *(
        Subject(f"file: {kind}", mutated(file.whole), try_format(kind), weight=file.weight)
        for kind, file in FORMATS.items()
    ),
    *(Subject(f"file of anything: {kind}", st.binary(max_size=200), try_format(kind), weight=1) for kind in FORMATS),
    Subject("file: checksums as another tree", another_json(FORMATS["checksums"].whole), try_format("checksums")),
    Subject("file: npz whose headers lie", lying_npz(), try_format("npz of digits")),
    Subject("file: cache whose headers lie", lying_npz(), try_format("npz of the cache"), weight=2),
    Subject("paths: members of a zip", zip_names(), try_zip_names, weight=2),
    Subject("paths: names in a list", zip_names(), try_listed_names, weight=5),
    Subject("paths: folders of images", image_trees(), try_image_tree, weight=3),
    Subject("command line: data", mutated(photo("PNG")), try_data_commands, weight=1),
]
