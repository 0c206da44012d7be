"""Readers of published formats: what they give, and what they say about files that are not as published."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from data import published
from fedrbn.data.raw import files, mat, photographs, usps
from fedrbn.data.raw.files import RawDigits, content_of
from fedrbn.data.raw.idx import read_idx, read_mnist
from fedrbn.data.raw.mnist_m import read_mnist_m
from fedrbn.data.raw.photographs import read_domainnet, read_office, read_parts


def _same(raw: RawDigits, arrays: dict[str, np.ndarray]) -> None:
    for part, (images, labels) in (("train", raw.train), ("test", raw.test)):
        assert images.dtype == labels.dtype == np.uint8
        assert np.array_equal(images, arrays[f"{part}_images"])
        assert np.array_equal(labels, arrays[f"{part}_labels"])


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path: Path, zipped: bool) -> None:
    arrays = published.mnist(tmp_path, zipped=zipped)
    raw = read_mnist(tmp_path)
    _same(raw, arrays)
    assert [source.name.removesuffix(".gz") for source in raw.sources] == [
        "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
    ]  # fmt: skip


def test_a_file_called_gz_may_be_unpacked_already(tmp_path: Path) -> None:
    path = tmp_path / "x-ubyte.gz"
    path.write_bytes(published.idx(np.arange(3, dtype=np.uint8)))
    assert read_idx(path, 1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing; expected 00000803"),
        (bytes.fromhex("00000801 00000002 0102"), "starts with 00000801; expected 00000803.*swapped"),
        (bytes.fromhex("00000d03 00000001 00000001 00000001 00"), "starts with 00000d03"),
        (bytes.fromhex("00000803 00000001"), "expected 00000803"),
        (bytes.fromhex("00000803 00000001 00000002 00000002 010203"), "3 bytes of data; expected 4.*1 x 2 x 2"),
        (bytes.fromhex("00000803 00000001 00000001 00000001 0102"), "2 bytes of data; expected 1"),
        (bytes.fromhex("00000803 ffffffff ffffffff ffffffff"), "0 bytes of data; expected 79,2"),
        (bytes.fromhex("00000803 00000000 00000001 00000001"), "expected none of them 0"),
    ],
)
def test_idx_files_are_checked(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(tmp_path / "x", 3)


def test_mnist_needs_its_files_and_equal_counts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without train-images-idx3-ubyte.gz or .*--where"):
        read_mnist(tmp_path)
    published.mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(published.idx(published.digits(0, 10)))
    with pytest.raises(ValueError, match="got 11 images and 10 labels"):
        read_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(published.idx(np.full(11, 12, np.uint8)))
    with pytest.raises(ValueError, match=r"got labels \[12\].*expected the digits 0 to 9"):
        read_mnist(tmp_path)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_compressed_files_are_read_up_to_a_limit(tmp_path: Path, pack: object) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(pack(bytes(10_000_000)))  # type: ignore[operator]
    assert path.stat().st_size < 20_000
    assert len(content_of(path, 10_000_000)) == 10_000_000
    with pytest.raises(ValueError, match="more than 9,999,999 bytes"):
        content_of(path, 9_999_999)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="bomb, which cannot be read"):
        content_of(path)


@pytest.mark.parametrize(("compress", "dtype"), [(True, "u1"), (False, "u1"), (True, "f8"), (False, "i4")])
def test_svhn(tmp_path: Path, compress: bool, dtype: str) -> None:
    arrays = published.svhn(tmp_path, compress, dtype)
    assert 10 in loadmat(tmp_path / "train_32x32.mat")["y"]  # which is the digit 0
    _same(mat.read_svhn(tmp_path), arrays)


def test_mat_agrees_with_scipy_on_every_type(tmp_path: Path) -> None:
    path = tmp_path / "all.mat"
    types = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
    arrays = {f"a_{name}": np.arange(24).reshape(2, 3, 4).astype(name) for name in types}
    arrays |= {"short": np.array([[7]], np.uint8), "x": np.array([[1.5, -2.5]])}
    savemat(path, arrays, do_compression=True)
    read, expected = mat.read_mat(path), loadmat(path)
    assert read.keys() == arrays.keys()
    for name, array in read.items():
        assert np.array_equal(array, expected[name])
        assert array.shape == expected[name].shape


def test_mat_reads_the_other_byte_order(tmp_path: Path) -> None:
    def element(kind: int, data: bytes) -> bytes:
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    parts = [(6, struct.pack(">II", 11, 0)), (5, struct.pack(">ii", 1, 2)), (1, b"v"), (4, struct.pack(">HH", 1, 515))]
    body = element(14, b"".join(element(*part) for part in parts))
    (tmp_path / "big.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI" + body)
    assert mat.read_mat(tmp_path / "big.mat")["v"].tolist() == [[1, 515]]


def _mat(path: Path, **arrays: object) -> Path:
    savemat(path, arrays)
    return path


def test_svhn_files_are_checked(tmp_path: Path) -> None:
    published.svhn(tmp_path)
    _mat(tmp_path / "train_32x32.mat", digitStruct=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"arrays \['digitStruct'\]; expected X and y.*cropped"):
        mat.read_svhn(tmp_path)
    _mat(tmp_path / "train_32x32.mat", X=np.zeros((32, 32, 3, 2)), y=np.ones((2, 1)))
    with pytest.raises(ValueError, match=r"X of float64 .*expected uint8 \(32, 32, 3, n\)"):
        mat.read_svhn(tmp_path)
    _mat(tmp_path / "train_32x32.mat", X=np.zeros((32, 32, 3, 2), np.uint8), y=np.array([[1], [11]]))
    with pytest.raises(ValueError, match=r"got labels \[ 1 11\]"):
        mat.read_svhn(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(600))
    with pytest.raises(ValueError, match=r"not a MATLAB version 5 file.*-v7.3"):
        mat.read_svhn(tmp_path)


def test_what_is_no_flat_array_is_refused(tmp_path: Path) -> None:
    for value in ({"a": 1}, np.array([1, "x"], dtype=object), "text", 1 + 2j):
        with pytest.raises(ValueError, match=r"x.mat, which cannot be read"):
            mat.read_mat(_mat(tmp_path / "x.mat", v=value))


def test_deep_nesting_does_not_end_the_process(tmp_path: Path) -> None:
    # 200,000 cells, each in the one before: SciPy's reader overflows the stack of the process on this file.
    head = struct.pack("<IIII", 6, 8, 1, 0) + struct.pack("<IIii", 5, 8, 1, 1) + struct.pack("<II", 1 | 1 << 16, 88)
    sizes = [(len(head) + 8) * (depth + 1) for depth in range(200_000)]
    inner = b"".join(struct.pack("<II", 14, size - 8) + head for size in reversed(sizes))
    (tmp_path / "deep.mat").write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + inner)
    with pytest.raises(ValueError, match=r"deep.mat, which cannot be read"):
        mat.read_mat(tmp_path / "deep.mat")


def test_mat_arrays_unpack_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.mat"
    # Each alone is within the limit; together they are not.
    savemat(path, {"a": np.zeros(600_000, np.uint8), "b": np.zeros(600_000, np.uint8)}, do_compression=True)
    monkeypatch.setattr(mat, "MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match="unpack to more than 1,000,000 bytes"):
        mat.read_mat(path)


def test_usps(tmp_path: Path) -> None:
    arrays = published.usps(tmp_path)
    _same(usps.read_usps(tmp_path), arrays)


def test_usps_values_are_floored_and_gaps_are_zero(tmp_path: Path) -> None:
    # floor(255 (v + 1) / 2): -1 -> 0, -0.6 -> 51 exactly, 0.5 -> 191.25 -> 191, 1 -> 255; left out is 0 -> 127.5 -> 127
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"10 1:-1 2:-0.6 4:0.5 256:1\n"))
    images, labels = usps.read_libsvm(path)
    assert images.reshape(-1)[[0, 1, 2, 3, 255]].tolist() == [0, 51, 127, 191, 255]
    assert labels.tolist() == [9]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "line 2 of usps: b''"),
        (b"1 0:0.5", "rising index:value pairs with indices 1 to 256"),
        (b"1 257:0.5", "line 2"),
        (b"1 2:0.5 2:0.5", "line 2"),
        (b"1 1:x", "line 2"),
        (b"one 1:0", "line 2"),
        (b"1 1:0 2", "line 2"),
        (b"1 inf:0", "line 2"),
        (b"0 1:0.5", r"got labels .*-1"),
        (b"11 1:0.5", r"got labels .*10"),
        (b"1 1:1.5", "to 1.25 in usps"),
        (b"1 1:nan", "no NaN"),
    ],
)
def test_usps_lines_are_checked(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "usps").write_bytes(b"3 1:0.5\n" + line + b"\n3 1:0.5\n")
    with pytest.raises(ValueError, match=message):
        usps.read_libsvm(tmp_path / "usps")


def test_usps_h5_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usps.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ValueError, match=r"expected the package h5py.*pip install h5py.*usps.bz2"):
        usps.read_usps(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("h5py") is None, reason="needs the package h5py")
class TestHdf5:
    def _write(self, folder: Path, **changes: np.ndarray) -> dict[str, np.ndarray]:
        h5py = importlib.import_module("h5py")
        arrays, out = {}, {}
        for part, count in (("train", 12), ("test", 10)):
            images = np.minimum(published.noise(count, count, 16, 16), 254)
            out |= {f"{part}_images": images, f"{part}_labels": published.digits(count, count)}
            arrays[f"{part}/data"] = ((images.reshape(count, 256) + 0.5) / 255).astype(np.float32)
            arrays[f"{part}/target"] = published.digits(count, count).astype(np.int64)
        with h5py.File(folder / "usps.h5", "w") as file:
            for name, array in (arrays | changes).items():
                file[name] = array
        return out

    def test_round_trip(self, tmp_path: Path) -> None:
        arrays = self._write(tmp_path)
        _same(usps.read_usps(tmp_path), arrays)

    def test_contents_are_checked(self, tmp_path: Path) -> None:
        self._write(tmp_path, **{"train/data": np.zeros((12, 100), np.float32)})
        with pytest.raises(ValueError, match=r"train/data .*\(12, 100\).*expected numbers of shape \('n', 256\)"):
            usps.read_usps(tmp_path)
        (tmp_path / "usps.h5").write_bytes((tmp_path / "usps.h5").read_bytes()[:900])
        with pytest.raises(ValueError, match=r"usps.h5, which cannot be read"):
            usps.read_usps(tmp_path)

    def test_links_out_of_the_file_are_refused(self, tmp_path: Path) -> None:
        h5py = importlib.import_module("h5py")
        (tmp_path / "other").mkdir()
        self._write(tmp_path / "other")
        self._write(tmp_path)
        with h5py.File(tmp_path / "usps.h5", "a") as file:
            del file["test/data"]
            file["test/data"] = h5py.ExternalLink(str(tmp_path / "other" / "usps.h5"), "test/data")
        with pytest.raises(ValueError, match="stored in the file itself"):
            usps.read_usps(tmp_path)


def test_mnist_m(tmp_path: Path) -> None:
    (tmp_path / "mnist_m").mkdir()
    arrays = published.mnist_m(tmp_path / "mnist_m")
    raw = read_mnist_m(tmp_path)
    _same(raw, arrays)
    _same(read_mnist_m(tmp_path / "mnist_m"), arrays)
    assert [(source.name, source.files) for source in raw.sources] == [
        ("mnist_m_train_labels.txt", 1), ("mnist_m_train/", 12), ("mnist_m_test_labels.txt", 1), ("mnist_m_test/", 10),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("../../secret.png 3", "expected a file name such as 00000000.png"),
        ("/etc/passwd.png 3", "expected a file name"),
        ("00000000.png 12", "expected a file name"),
        ("00000000.png", "expected a file name"),
        ("00000099.png 3", "got no file mnist_m_test/00000099.png"),
    ],
)
def test_mnist_m_labels_are_checked(tmp_path: Path, line: str, message: str) -> None:
    published.mnist_m(tmp_path)
    with (tmp_path / "mnist_m_test_labels.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        read_mnist_m(tmp_path)


def test_mnist_m_images_have_one_size(tmp_path: Path) -> None:
    published.mnist_m(tmp_path)
    (tmp_path / "mnist_m_train" / "00000003.png").write_bytes(published.png(published.noise(0, 30, 31, 3)))
    with pytest.raises(ValueError, match=r"got 00000003.png of 31 x 30 pixels; expected 32 x 32"):
        read_mnist_m(tmp_path)


@pytest.mark.parametrize("caltech", ["caltech10", "caltech"])
def test_office(tmp_path: Path, caltech: str) -> None:
    contents = published.office(tmp_path, caltech)
    found = read_office(tmp_path)
    assert [raw.domain for raw in found] == ["amazon", "caltech", "dslr", "webcam"]
    for raw in found:
        assert [photo.content for photo in raw.photographs] == contents[raw.domain]
        assert [photo.class_name for photo in raw.photographs] == [name for name in published.OFFICE for _ in range(2)]


def test_office_needs_four_domains_of_the_same_ten_classes(tmp_path: Path) -> None:
    published.office(tmp_path)
    (tmp_path / "webcam" / "mug").rename(tmp_path / "webcam" / "cup")
    with pytest.raises(ValueError, match=r"10 classes with images in webcam .*cup.*expected the same 10"):
        read_office(tmp_path)
    (tmp_path / "dslr").rename(tmp_path / "camera")
    with pytest.raises(ValueError, match="without the folder dslr"):
        read_office(tmp_path)


def test_domainnet_keeps_ten_classes(tmp_path: Path) -> None:
    kept = published.domainnet_zip(tmp_path / "clipart.zip")
    (raw,) = read_domainnet(tmp_path)
    assert raw.domain == "clipart"
    assert [f"clipart/{p.class_name}/{p.file_name}" for p in raw.photographs] == sorted(kept)
    assert [p.content for p in raw.photographs] == [kept[name] for name in sorted(kept)]
    assert {p.test for p in raw.photographs} == {None}
    assert read_domainnet(tmp_path / "clipart.zip") == [raw]


def test_domainnet_may_be_unpacked(tmp_path: Path) -> None:
    kept = published.domainnet_zip(tmp_path / "sketch.zip")
    with zipfile.ZipFile(tmp_path / "sketch.zip") as archive:
        archive.extractall(tmp_path)  # our own file
    (from_zip,) = read_domainnet(tmp_path)
    (tmp_path / "sketch.zip").unlink()
    (from_folder,) = read_domainnet(tmp_path)
    assert from_folder.photographs == from_zip.photographs
    assert from_folder.sources[0].files == len(kept)


def _lists(folder: Path, names: list[str]) -> None:
    """Every third is a test image; a class that is not kept is listed too."""
    for part, third in (("train", False), ("test", True)):
        lines = [f"{name} 3\n" for i, name in enumerate(names) if (i % 3 == 2) == third]
        (folder / f"real_{part}.txt").write_text("".join(lines) + "real/aircraft_carrier/real_001_000001.jpg 0\n")


def test_domainnet_follows_the_published_lists(tmp_path: Path) -> None:
    names = sorted(published.domainnet_zip(tmp_path / "real.zip"))
    _lists(tmp_path, names[:-1])  # what is not listed is left out
    (raw,) = read_domainnet(tmp_path)
    assert [p.test for p in raw.photographs] == [i % 3 == 2 for i in range(29)]
    assert [source.name for source in raw.sources] == ["real.zip", "real_train.txt", "real_test.txt"]


def test_domainnet_lists_are_checked(tmp_path: Path) -> None:
    names = sorted(published.domainnet_zip(tmp_path / "real.zip"))
    _lists(tmp_path, [*names, "real/zebra/real_999_000001.jpg"])
    with pytest.raises(ValueError, match=r"without 1 of the files .*zebra/real_999_000001.jpg.*same version"):
        read_domainnet(tmp_path)
    _lists(tmp_path, names)
    with (tmp_path / "real_test.txt").open("a") as file:
        file.write(f"{names[0]} 3\n")
    with pytest.raises(ValueError, match=r"in both real_train.txt and real_test.txt"):
        read_parts(tmp_path, "real")
    (tmp_path / "real_test.txt").write_text("sketch/zebra/x.jpg 1\n")
    with pytest.raises(ValueError, match=r"line 1 of real_test.txt.*expected real/<class>/<file>"):
        read_parts(tmp_path, "real")
    (tmp_path / "real_test.txt").unlink()
    with pytest.raises(ValueError, match=r"got real_train.txt alone"):
        read_parts(tmp_path, "real")


def test_zip_members_are_never_written(tmp_path: Path) -> None:
    published.domainnet_zip(
        tmp_path / "real.zip",
        extra={"../evil.jpg": b"x", "/evil.jpg": b"x", "real/zebra/../../../evil.jpg": b"x", "real/../x.jpg": b"x"},
    )
    (raw,) = read_domainnet(tmp_path)
    assert len(raw.photographs) == 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["real.zip"]


def test_zip_members_are_read_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.domainnet_zip(tmp_path / "real.zip", extra={"real/zebra/bomb.jpg": bytes(3_000_000)})
    assert (tmp_path / "real.zip").stat().st_size < 100_000
    monkeypatch.setattr(photographs, "MOST_IMAGE_BYTES", 1_000_000)
    with pytest.raises(ValueError, match=r"bomb.jpg, which holds more than 1,000,000 bytes"):
        read_domainnet(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(photographs, "MOST_DOMAIN_BYTES", 2_000_000)
    with pytest.raises(ValueError, match=r"more than 2,000,000 bytes of images in real.zip"):
        read_domainnet(tmp_path)


def test_zips_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without any of real.zip, clipart.zip"):
        read_domainnet(tmp_path)
    (tmp_path / "real.zip").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match=r"real.zip, which cannot be read"):
        read_domainnet(tmp_path)
    with zipfile.ZipFile(tmp_path / "real.zip", "w") as archive:
        archive.writestr("real/bird/a.jpg", published.jpeg(1))
    with pytest.raises(ValueError, match="without images of class feather"):
        read_domainnet(tmp_path)


def test_a_source_is_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    # sha256 of "abc" is the first example of the standard, FIPS 180-2.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.file_source(tmp_path / "x") == files.Source("x", 1, 3, digest)
    assert files.folder_source("folder", [b"a", b"bc"]) == files.Source("folder/", 2, 3, digest)


def test_broken_compression_inside_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    good = io.BytesIO()
    savemat(good, {"a": np.arange(1000)}, do_compression=True)
    content = bytearray(good.getvalue())
    content[200] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.mat, which cannot be read") as caught:
        mat.read_mat(path)
    assert isinstance(caught.value.__cause__, zlib.error | mat._Malformed)
