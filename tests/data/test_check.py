from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data import published
from fedrbn.data import duplicates
from fedrbn.data.check import check, check_folder, check_samples
from fedrbn.data.duplicates import fingerprints, matches
from fedrbn.data.prepare import prepare
from fedrbn.data.samples import DataSet, Domain, Samples


def _scene(seed: int, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """A smooth picture, as photographs are: few random colours, enlarged."""
    return Image.fromarray(published.noise(seed, 6, 9, 3)).resize(size, Image.Resampling.BICUBIC)


def _save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """photo comes in parts, four training and two test images of each class; sketch has five cats and no dog."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(6):
            _save(_scene(10 * label + i), tmp_path / "photo" / ("train" if i < 4 else "test") / name / f"{i}.png")
    for i in range(5):
        _save(_scene(100 + i, (30 + i, 20)), tmp_path / "sketch" / "cat" / f"{i}.png")
    return tmp_path


def test_counts_sizes_and_missing_classes(root: Path) -> None:
    report = check_folder(root)
    photo, sketch = report.domains
    assert report.classes == ("cat", "dog")
    assert (photo.train, photo.test) == ({"cat": 4, "dog": 4}, {"cat": 2, "dog": 2})
    assert (sketch.train, sketch.test) == ({"cat": 4, "dog": 0}, {"cat": 1, "dog": 0})  # 80/20
    assert (photo.widths, photo.heights) == ((96, 96.0, 96), (64, 64.0, 64))
    assert (sketch.widths, sketch.heights) == ((30, 32.0, 34), (20, 20.0, 20))
    assert (photo.missing, sketch.missing) == ((), ("dog",))
    assert report.passed
    assert report.exact == report.near == report.broken == ()


def test_broken_files_are_listed_and_the_rest_is_checked(root: Path) -> None:
    (root / "photo" / "train" / "cat" / "0.png").write_bytes(b"no image")
    (root / "photo" / "test" / "dog" / "9.jpg").write_bytes(b"")
    report = check(str(root))
    assert [message.split(",")[0] for message in report.broken] == [
        "got photo/train/cat/0.png", "got photo/test/dog/9.jpg",
    ]  # fmt: skip
    assert report.domains[0].train == {"cat": 3, "dog": 4}
    assert not report.passed


def test_exact_duplicates_are_found_by_their_pixels(root: Path) -> None:
    # Another file, other compression, another domain and class: the same pixels.
    original = Image.open(root / "sketch" / "cat" / "0.png")
    original.save(root / "photo" / "train" / "dog" / "copy.png", compress_level=0)
    original.save(root / "photo" / "test" / "dog" / "copy.png")
    report = check_folder(root)
    assert [(pair.test, pair.difference) for pair in report.exact] == [("photo/test/dog/copy.png", 0.0)]
    assert not report.passed


def test_near_duplicates_are_reported_but_pass(root: Path) -> None:
    image = Image.open(root / "photo" / "train" / "cat" / "2.png").convert("RGB")
    image.save(root / "photo" / "test" / "cat" / "saved.jpg", quality=60)
    image.resize((48, 32), Image.Resampling.BILINEAR).save(root / "photo" / "test" / "dog" / "small.png")
    report = check_folder(root)
    assert [(pair.train, pair.test) for pair in report.near] == [
        ("photo/train/cat/2.png", "photo/test/cat/saved.jpg"), ("photo/train/cat/2.png", "photo/test/dog/small.png"),
    ]  # fmt: skip
    assert all(0 < pair.difference <= 0.05 for pair in report.near)
    assert report.passed


def test_a_domain_of_broken_files_only(tmp_path: Path) -> None:
    (tmp_path / "photo" / "cat").mkdir(parents=True)
    (tmp_path / "photo" / "cat" / "a.png").write_bytes(b"")
    report = check_folder(tmp_path)
    assert report.domains[0].missing == ("cat",)
    assert len(report.broken) == 1


def test_hashes_by_hand() -> None:
    # 8 rows of 9 pixels. Brighter than the left neighbour: everywhere in a ramp, nowhere in a falling one, and in the
    # first of eight steps only where the first pixel is dark and the others equal.
    ramp = torch.arange(9, dtype=torch.uint8).expand(1, 3, 8, 9)
    step = torch.ones(1, 3, 8, 9, dtype=torch.uint8)
    step[..., 0] = 0
    hashes = fingerprints(torch.cat([ramp, ramp.flip(-1), step])).hashes
    assert hashes.tolist() == [0xFFFF_FFFF_FFFF_FFFF, 0, 0x8080_8080_8080_8080]


def test_equal_hashes_are_not_enough() -> None:
    # Both rise from left to right, so all bits agree; but one is nearly black and the other spans all brightnesses.
    ramp = (torch.arange(32) * 8).to(torch.uint8).expand(1, 3, 32, 32)
    dim = (torch.arange(32)).to(torch.uint8).expand(1, 3, 32, 32)
    one, other = fingerprints(ramp), fingerprints(dim)
    assert one.hashes == other.hashes
    assert matches(one, other) == []
    assert [(m.train, m.test) for m in matches(one, fingerprints(ramp + 1))] == [(0, 0)]


def test_flat_images_match_if_they_look_the_same() -> None:
    flat = torch.full((1, 3, 20, 20), 100, dtype=torch.uint8)
    # 16 x 16 thumbnails that differ by d in every pixel are 16 d apart; without contrast 16 d / 16 = d must be <= 0.05.
    (match,) = matches(fingerprints(flat), fingerprints(flat.clone()))
    assert match.difference == 0
    assert matches(fingerprints(flat), fingerprints(flat + 1)) == []


def test_blocks_and_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.from_numpy(np.stack([np.asarray(_scene(i)) for i in range(12)])).permute(0, 3, 1, 2)
    train = fingerprints(images[:8])
    test = fingerprints(torch.cat([images[8:], images[:5].clamp(max=250), images[5:7]]))
    expected = matches(train, test)
    assert [(m.train, m.test) for m in expected] == [(i, 4 + i) for i in range(7)]
    for name in ("_BLOCK", "_CANDIDATES", "_BATCH"):
        monkeypatch.setattr(duplicates, name, 1)
    assert matches(train, test) == expected
    assert np.array_equal(fingerprints(images[:8]).hashes, train.hashes)


def test_data_in_memory(mini: DataSet) -> None:
    report = check("digits-mini")
    assert [sum(domain.train.values()) for domain in report.domains] == [1347] * 5
    assert report.domains[0].widths == (28, 28.0, 28)
    assert report.passed
    assert report.near == ()
    leaky = Domain("leaky", mini.domains[0].train, mini.domains[0].train.first(3), "leaky")
    assert [pair.test for pair in check_samples(DataSet("x", (leaky,), mini.classes)).exact] == [
        "leaky test 0", "leaky test 1", "leaky test 2",
    ]  # fmt: skip


def test_own_federations_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_leaky_fleet.py").write_text(
        "import torch\n"
        "from fedrbn.data.samples import Client, Federation, Samples\n"
        "from fedrbn.types import Role\n"
        "part = Samples(torch.arange(2 * 48, dtype=torch.uint8).reshape(2, 3, 4, 4), torch.tensor([0, 1]))\n"
        "client = Client('a', 'd', Role.ST, part, part, part)\n"
        "fleet = Federation((client,), ('d',), {'d': 'D'}, ('x', 'y'), True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = check("my_leaky_fleet:fleet")
    assert report.domains[0].train == {"x": 2, "y": 2}  # training and validation
    assert len(report.exact) == 2


def test_changed_prepared_files_are_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw").mkdir()
    published.office(tmp_path / "raw")
    prepare(tmp_path / "raw", "office-caltech10", tmp_path)
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    assert check("office-caltech10").passed
    path = tmp_path / "office_caltech10" / "dslr.npz"
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    np.savez(path, **arrays)
    assert check("office-caltech10").broken == ("dslr.npz does not have the sha256 in checksums.json",)


@pytest.mark.slow
@pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="set FEDRBN_DATA to the folder with office_caltech10/")
def test_copies_of_real_photographs() -> None:
    path = Path(os.environ["FEDRBN_DATA"]) / "office_caltech10" / "caltech.npz"
    with np.load(path, allow_pickle=False) as archive:
        content, offsets = archive["jpeg_data"], archive["offsets"]
    for row in range(0, 1000, 50):
        image = Image.open(io.BytesIO(content[offsets[row] : offsets[row + 1]].tobytes())).convert("RGB")
        buffer = io.BytesIO()
        image.save(buffer, format="JPEG", quality=50)
        one, other = (
            fingerprints(torch.from_numpy(np.array(Image.open(x) if x else image))[None].permute(0, 3, 1, 2))
            for x in (None, buffer)
        )
        assert len(matches(one, other)) == 1, row


@pytest.mark.slow
@pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="set FEDRBN_DATA to the folder with digits/")
def test_real_data() -> None:
    digits, office = check("digits"), check("office-caltech10")
    assert digits.exact == digits.near == ()
    # Amazon shows some articles more than once with the same photograph.
    assert {pair.test.split()[0] for pair in office.exact} == {"amazon"}


def test_samples_need_not_be_rgb() -> None:
    grey = Samples(torch.arange(32, dtype=torch.uint8).reshape(2, 1, 4, 4), torch.tensor([0, 0]))
    report = check_samples(DataSet("grey", (Domain("d", grey, grey.first(1), "d"),), ("only",)))
    assert [(pair.train, pair.test) for pair in report.exact] == [("d train 0", "d test 0")]
