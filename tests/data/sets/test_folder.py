from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedrbn.config import FederationConfig
from fedrbn.data import AVAILABLE, load
from fedrbn.data.federation import build
from fedrbn.data.sets.folder import decode, decode_all, image_folder
from fedrbn.data.sets.photographs import office_caltech10


def _image(path: Path, colour: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (12, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def _folder(root: Path, domains: tuple[str, ...] = ("photo", "sketch"), count: int = 10) -> Path:
    for domain in domains:
        for label, name in enumerate(("cat", "dog")):
            for i in range(count):
                _image(root / domain / name / f"{i}.png", (i, 100 * label, 0))
    return root


def test_domains_classes_and_split(tmp_path: Path) -> None:
    data = image_folder(_folder(tmp_path), image_size=16)
    assert [domain.name for domain in data.domains] == ["photo", "sketch"]
    assert data.classes == ("cat", "dog")
    for domain in data.domains:
        assert domain.train.images.shape == (16, 3, 16, 16)
        assert domain.train.labels.bincount().tolist() == [8, 8]  # 80 % of ten each
        assert domain.test.labels.bincount().tolist() == [2, 2]
        # Red counts the file, green its class: each file is in one part, with its own label.
        seen = [
            (int(image[0, 0, 0]), int(image[1, 0, 0]) // 100)
            for part in (domain.train, domain.test)
            for image in part.images
        ]
        assert sorted(seen) == [(i, label) for i in range(10) for label in range(2)]
        assert domain.test.images[:, 1, 0, 0].tolist() == (100 * domain.test.labels).tolist()


def test_the_split_is_always_the_same(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    first, again = image_folder(root, 8), image_folder(root, 8)
    assert torch.equal(first.domains[0].test.images, again.domains[0].test.images)


def test_the_default_size_is_256(tmp_path: Path) -> None:
    data = load(str(_folder(tmp_path, count=2)))
    assert data.domains[0].train.images.shape[1:] == (3, 256, 256)
    assert data.name == tmp_path.name


def test_given_parts_are_kept(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        _image(tmp_path / "photo" / "train" / name / "a.jpg")
        _image(tmp_path / "photo" / "train" / name / "b.JPEG")
        _image(tmp_path / "photo" / "test" / name / "c.png", (0, 0, 255))
    domain = image_folder(tmp_path, 8).domains[0]
    assert (len(domain.train), len(domain.test)) == (4, 2)
    assert domain.test.images[:, 2].min() == 255
    assert domain.train.images[:, 2].max() < 10


def test_train_may_be_a_class(tmp_path: Path) -> None:
    for name in ("train", "ship"):
        for i in range(2):
            _image(tmp_path / "photo" / name / f"{i}.png")
    assert image_folder(tmp_path, 8).classes == ("ship", "train")


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    root = _folder(tmp_path, count=2)
    (root / ".hidden").mkdir()
    (root / "README.md").write_text("about these images")
    (root / "photo" / "cat" / "notes.txt").write_text("no image")
    (root / "photo" / "cat" / "._0.png").write_text("what some systems leave behind")
    assert len(image_folder(root, 8).domains[0].train) == 2


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_every_kind_of_image_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    Image.new("RGB", (9, 9), "white").convert(mode).save(path)
    decoded = decode(path, str(path), 4)
    assert decoded.shape == (4, 4, 3)
    assert decoded.min() > 250


def test_sixteen_bits_are_refused_rather_than_clipped(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(np.full((4, 4), 3000, np.uint16)).save(path)
    with pytest.raises(ValueError, match=r"x.png with pixels of mode I;16; expected 8 bits"):
        decode(path, str(path), 4)


def _bomb(side: int) -> bytes:
    """A PNG of a few hundred bytes whose header promises side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [7_100, 10_000, 60_000])  # above ours, above Pillow's warning, above its error
@pytest.mark.parametrize("action", ["error", "ignore"])
def test_bombs_are_refused_before_decoding(side: int, action: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter(action)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"got bomb.png.*expected at most 50,000,000 pixels"):
            decode(_bomb(side), "bomb.png", 8)


@pytest.mark.parametrize("content", [b"", b"text, not pixels", b"GIF89a" + bytes(20), b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes) -> None:
    root = _folder(tmp_path, count=2)
    bad = root / "photo" / "dog" / "bad.png"
    bad.write_bytes(content)
    with pytest.raises(ValueError, match=r"dog/bad.png, which is not a JPEG, PNG or WebP"):
        image_folder(root, 8)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_cut_images_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cut.{suffix}"
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    with pytest.raises(ValueError, match=rf"cut.{suffix}, which cannot be decoded"):
        decode(path, str(path), 8)


@pytest.mark.parametrize(("at", "value"), [(11, 0), (36, 0)])
def test_whatever_the_decoder_raises_is_named(at: int, value: int) -> None:
    # Byte 11 ends the length of the header chunk and byte 36 that of the data: Pillow raises ValueError ("Truncated
    # IHDR chunk") and SyntaxError ("broken PNG file"), neither of which names the file.
    noise = np.random.default_rng(1).integers(256, size=(9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, format="PNG")
    content = bytearray(buffer.getvalue())
    content[at] = value
    with pytest.raises(ValueError, match=r"got x.png, which cannot be decoded"):
        decode(bytes(content), "x.png", 8)


def test_a_decoded_image_keeps_its_size_if_none_is_asked() -> None:
    noise = np.random.default_rng(1).integers(256, size=(9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, format="PNG")
    assert np.array_equal(decode(buffer.getvalue(), "x.png", None), noise)


def test_classes_must_agree(tmp_path: Path) -> None:
    root = _folder(tmp_path, count=2)
    (root / "sketch" / "dog").rename(root / "sketch" / "Dog")
    with pytest.raises(ValueError, match=r"photo without class folder Dog.*Check the spelling"):
        image_folder(root, 8)


def test_a_domain_may_lack_a_class_if_it_says_so(tmp_path: Path) -> None:
    root = _folder(tmp_path, count=2)
    for path in (root / "sketch" / "dog").iterdir():
        path.unlink()
    assert image_folder(root, 8).domains[1].train.labels.tolist() == [0]


def test_empty_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without folders; expected <root>/<domain>/<class>"):
        image_folder(tmp_path)
    (tmp_path / "photo").mkdir()
    with pytest.raises(ValueError, match=r"without class folders; expected <root>/<domain>/<class>"):
        image_folder(tmp_path)
    (tmp_path / "photo" / "cat").mkdir()
    with pytest.raises(ValueError, match=r"got no images below .*photo"):
        image_folder(tmp_path)


def test_one_image_per_class_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one image per class in domain 'photo'"):
        image_folder(_folder(tmp_path, count=1), 8)


def _office(folder: Path, **changes: np.ndarray) -> None:
    jpegs = []
    for value in (0, 60, 120, 180):
        buffer = io.BytesIO()
        Image.new("RGB", (10, 10), (value, 0, 0)).save(buffer, format="JPEG")
        jpegs.append(buffer.getvalue())
    arrays = {
        "jpeg_data": np.frombuffer(b"".join(jpegs), np.uint8),
        "offsets": np.cumsum([0, *map(len, jpegs)]),
        "labels": np.array([0, 0, 1, 1], np.uint8),
        "class_names": np.array(["bike", "mug"]),
    }
    folder.mkdir(exist_ok=True)
    for name in ("amazon", "caltech", "dslr", "webcam"):
        np.savez(folder / f"{name}.npz", **(arrays | changes))


def test_office_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    _office(tmp_path / "office_caltech10")
    data = office_caltech10(image_size=8)
    assert [domain.name for domain in data.domains] == ["amazon", "caltech", "dslr", "webcam"]
    assert data.classes == ("bike", "mug")
    domain = data.domains[0]
    assert (len(domain.train), len(domain.test)) == (2, 2)
    reds = torch.cat([domain.train.images, domain.test.images])[:, 0, 0, 0].tolist()
    labels = torch.cat([domain.train.labels, domain.test.labels]).tolist()
    assert sorted(zip(reds, labels, strict=True)) == [(0, 0), (60, 0), (120, 1), (180, 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.array([0, 0, 1, 2], np.uint8)},
        {"labels": np.array([0, 0, 1], np.uint8)},
        {"offsets": np.array([0, 5, 3, 9, 12])},
        {"offsets": np.array([0, 1, 2, 3, 10**9])},
        {"jpeg_data": np.zeros(10)},
    ],
)
def test_office_archives_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, np.ndarray]
) -> None:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    _office(tmp_path / "office_caltech10", **changes)
    with pytest.raises(ValueError, match=r"amazon.npz with .*expected jpeg_data uint8"):
        office_caltech10(8)


@pytest.mark.slow
@pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="set FEDRBN_DATA to the folder with office_caltech10/")
def test_the_real_office_caltech10() -> None:
    data, described = load("office-caltech10", image_size=32), AVAILABLE["office-caltech10"]
    assert tuple(domain.name for domain in data.domains) == described.domains
    assert tuple(len(domain.train) for domain in data.domains) == described.train
    assert tuple(len(domain.test) for domain in data.domains) == described.test
    assert len(data.classes) == 10


def grey(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (9, 7), value).save(buffer, "PNG")
    return buffer.getvalue()


def test_many_images_are_decoded_at_once_each_in_its_place() -> None:
    """200 grey images, brighter by one each; `decode` one by one gives the same."""
    names: list[str] = []

    def read(row: int) -> tuple[bytes, str]:
        names.append(f"image {row}")
        return grey(row), names[-1]

    filters = list(warnings.filters)
    found = decode_all(200, read, 8)
    assert warnings.filters == filters
    assert found.shape == (200, 8, 8, 3)
    assert (found == np.arange(200, dtype=np.uint8)[:, None, None, None]).all()
    assert np.array_equal(found[7], decode(grey(7), "seventh", 8))
    assert len(names) == 200


def test_the_first_broken_image_ends_it_by_name_and_the_rest_is_left() -> None:
    seen: list[int] = []

    def read(row: int) -> tuple[bytes, str]:
        seen.append(row)
        return (b"no image" if row in {3, 5} else grey(row % 256)), f"image {row}"

    with pytest.raises(ValueError, match="got image 3, which is not a JPEG, PNG or WebP"):
        decode_all(2000, read, 8)
    assert len(seen) < 2000


def test_webp_is_read(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    _image(root / "photo" / "cat" / "more.webp")
    assert len(image_folder(root, 8).domains[0].train) == 17  # 80 % of eleven cats is nine, of ten dogs eight


def test_ignored_files_are_counted_by_reason(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    assert image_folder(root, 8).remarks == ()
    for name in (
        "photo/cat/a.gif",
        "photo/cat/b.gif",
        "photo/cat/c.TXT",
        "photo/cat/d",
        "photo/e.png",
        "sketch/.f.png",
    ):
        (root / name).write_bytes(b"x")
    (root / "photo" / "cat" / "deeper").mkdir()
    (root / "photo" / "cat" / "deeper" / "g.png").write_bytes(b"x")
    data = image_folder(root, 8)
    assert data.remarks == (
        "7 files ignored (images are .jpg, .jpeg, .png, .webp): 2 with the suffix .gif; 2 not directly in a class "
        "folder; 1 with the suffix .TXT; 1 without a suffix; 1 hidden; fedrbn data check lists them",
    )
    assert build(data, FederationConfig(users_per_domain=1, at=0, fraction=1), seed=1).remarks == data.remarks


def test_one_class_is_refused(tmp_path: Path) -> None:
    for i in range(20):
        _image(tmp_path / "photo" / "cat" / f"{i}.png", (i, 0, 0))
    with pytest.raises(ValueError, match=r"got training images of the class 'cat' only; expected at least two classes"):
        build(image_folder(tmp_path, 8), FederationConfig(users_per_domain=1, at=0), seed=1)


def test_domains_that_are_cut_to_the_smallest_are_said_to_be(tmp_path: Path) -> None:
    root = _folder(tmp_path)
    for i in range(10, 20):
        _image(root / "photo" / "cat" / f"{i}.png", (i, 0, 0))
    fleet = build(image_folder(root, 8), FederationConfig(users_per_domain=1, at=0, fraction=1), seed=1)
    assert fleet.remarks == (  # 80 % of 20 and 10, and of 10 and 10
        "32 of 40 training images are used: 16 of each domain, because sketch, the smallest, has 16",
    )
