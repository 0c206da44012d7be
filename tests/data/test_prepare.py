"""From files in the published formats to what `data.load` gives."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data import published
from fedrbn.data import load
from fedrbn.data.official import DOMAINNET_CLASSES, DOMAINNET_DOMAINS, OFFICIAL
from fedrbn.data.prepare import changed_files, prepare
from fedrbn.data.samples import DataSet, Samples
from fedrbn.data.sets.cache import Expected, cached
from fedrbn.data.sets.folder import decode
from fedrbn.data.sets.synth_digits import VERSION


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "downloads").mkdir()
    return tmp_path / "downloads"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path / "prepared"))
    return tmp_path / "prepared"


WRITERS = {"mnist": published.mnist, "svhn": published.svhn, "usps": published.usps, "mnist_m": published.mnist_m}


@pytest.mark.parametrize("kind", WRITERS)
def test_digits_are_the_same_to_the_pixel(kind: str, source: Path, out: Path) -> None:
    arrays = WRITERS[kind](source)
    (path,) = prepare(source, kind, out)
    assert path == out / "digits" / f"{kind}.npz"
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive) == set(arrays)
        for name, array in arrays.items():
            assert archive[name].dtype == np.uint8
            assert np.array_equal(archive[name], array)


@pytest.fixture
def blank_synth_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SynthDigits takes ten seconds to draw and is not what is tested here: its cache holds blank pictures."""
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path / "cache"))
    parts = [
        Samples(torch.zeros(n, 3, 28, 28, dtype=torch.uint8), torch.zeros(n, dtype=torch.int64))
        for n in (10_000, 5_000)
    ]
    expected = Expected(train=10_000, test=5_000, shape=(3, 28, 28), classes=10)
    cached(f"synth-digits-10000-5000-0-v{VERSION}", expected, lambda: (parts[0], parts[1]))


@pytest.mark.usefixtures("blank_synth_digits")
def test_prepared_digits_are_loaded(source: Path, out: Path) -> None:
    arrays = {kind: write(source) for kind, write in WRITERS.items()}
    for kind in WRITERS:
        prepare(source, kind, out)
    data = load("digits")
    assert isinstance(data, DataSet)
    loaded = {domain.name: domain for domain in data.domains}
    assert loaded["synthdigits"].train.images.max() == 0  # the blank ones: nothing was drawn
    mnist = torch.from_numpy(arrays["mnist"]["train_images"])
    assert torch.equal(loaded["mnist"].train.images, mnist[:, None].repeat(1, 3, 1, 1))  # 28 x 28 already
    for kind in WRITERS:
        assert loaded[kind].test.labels.tolist() == arrays[kind]["test_labels"].tolist()
    entries = json.loads((out / "digits" / "checksums.json").read_text())
    assert set(entries) == {f"{kind}.npz" for kind in WRITERS}


def test_checksums_say_what_was_read_and_written(source: Path, out: Path) -> None:
    published.mnist(source)
    (path,) = prepare(source, "mnist", out)
    entry = json.loads((out / "digits" / "checksums.json").read_text())["mnist.npz"]
    assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert entry["bytes"] == path.stat().st_size
    # 12 training labels from 2 on: 2, 3, …, 9, 0, 1, 2, 3.
    assert entry["counts"]["train"] == {str(digit): 2 if digit in (2, 3) else 1 for digit in range(10)}
    assert len(entry["sources"]) == 4
    for recorded in entry["sources"]:
        content = (source / recorded["name"]).read_bytes()
        assert (recorded["files"], recorded["bytes"]) == (1, len(content))
        assert recorded["sha256"] == hashlib.sha256(content).hexdigest()


def test_the_same_download_gives_the_same_file(source: Path, out: Path) -> None:
    published.mnist(source)
    (first,), (again,) = prepare(source, "mnist", out), prepare(source, "mnist", out / "again")
    assert first.read_bytes() == again.read_bytes()


def test_changes_are_noticed(source: Path, out: Path) -> None:
    published.mnist(source)
    (path,) = prepare(source, "mnist", out)
    assert changed_files(path.parent) == []
    path.write_bytes(path.read_bytes() + b"x")
    assert changed_files(path.parent) == ["mnist.npz does not have the sha256 in checksums.json"]
    path.unlink()
    assert changed_files(path.parent) == ["mnist.npz is missing"]


def test_nothing_is_replaced_unasked(source: Path, out: Path) -> None:
    published.mnist(source)
    (path,) = prepare(source, "mnist", out)
    path.write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"already has mnist.npz.*--force"):
        prepare(source, "mnist", out)
    assert path.read_bytes() == b"mine"
    prepare(source, "mnist", out, force=True)
    assert changed_files(path.parent) == []


def test_a_failure_leaves_nothing_behind(source: Path, out: Path) -> None:
    published.mnist(source)
    (source / "t10k-images-idx3-ubyte.gz").write_bytes(b"cut")
    with pytest.raises(ValueError, match="t10k-images"):
        prepare(source, "mnist", out)
    assert not out.exists()


def test_unknown_kinds_and_places(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got --as 'cifar'; expected one of mnist, svhn"):
        prepare(tmp_path, "cifar", tmp_path)
    with pytest.raises(ValueError, match=r"which does not exist; expected the folder with train_32x32.mat"):
        prepare(tmp_path / "nowhere", "svhn", tmp_path)


def test_office_is_loaded(source: Path, out: Path) -> None:
    contents = published.office(source)
    assert [path.name for path in prepare(source, "office-caltech10", out)] == [
        "amazon.npz", "caltech.npz", "dslr.npz", "webcam.npz",
    ]  # fmt: skip
    data = load("office-caltech10", image_size=12)
    assert isinstance(data, DataSet)
    assert data.classes == tuple(published.OFFICE)
    assert data.augment
    for domain in data.domains:
        assert (len(domain.train), len(domain.test)) == (10, 10)  # of two images per class one is for testing
        expected = {decode(content, "", 12).tobytes() for content in contents[domain.name]}
        loaded = torch.cat([domain.train.images, domain.test.images]).permute(0, 2, 3, 1)
        assert {image.numpy().tobytes() for image in loaded} == expected


def test_office_names_the_broken_photograph(source: Path, out: Path) -> None:
    published.office(source)
    path = source / "dslr" / "mug" / "frame_0001.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"dslr/mug/frame_0001.jpg, which cannot be decoded"):
        prepare(source, "office-caltech10", out)


def test_domainnet_is_loaded_with_the_published_parts(source: Path, out: Path) -> None:
    for domain in DOMAINNET_DOMAINS:
        names = sorted(published.domainnet_zip(source / f"{domain}.zip"))
        for part, chosen in (("train", names[1::3] + names[2::3]), ("test", names[::3])):
            (source / f"{domain}_{part}.txt").write_text("".join(f"{name} 1\n" for name in chosen))
    prepare(source, "domainnet", out)
    data = load("domainnet", image_size=12)
    assert isinstance(data, DataSet)
    assert [domain.name for domain in data.domains] == [
        "real",
        "clipart",
        "infograph",
        "painting",
        "quickdraw",
        "sketch",
    ]
    assert data.classes == DOMAINNET_CLASSES
    assert data.augment
    kept = published.domainnet_zip(source / "real.zip")
    for part, rows in ((data.domains[0].test, slice(0, None, 3)), (data.domains[0].train, None)):
        assert part.labels.bincount().tolist() == [1 if rows else 2] * 10
        if rows:
            for image, name in zip(part.images, sorted(kept)[rows], strict=True):
                assert np.array_equal(image.permute(1, 2, 0).numpy(), decode(kept[name], name, 12))


def test_domainnet_without_lists_is_split_within_classes(source: Path, out: Path) -> None:
    published.domainnet_zip(source / "sketch.zip", per_class=5)
    (path,) = prepare(source / "sketch.zip", "domainnet", out)
    with np.load(path, allow_pickle=False) as archive:
        assert np.bincount(archive["labels"][archive["test"]]).tolist() == [1] * 10  # a fifth of five
        assert np.bincount(archive["labels"][~archive["test"]]).tolist() == [4] * 10
    with pytest.raises(ValueError, match=r"got no file .*real.npz"):
        load("domainnet")


def test_every_official_set_can_be_prepared(tmp_path: Path) -> None:
    for kind in OFFICIAL:  # each has a reader, which misses its files
        with pytest.raises(ValueError, match="without"):
            prepare(tmp_path, kind, tmp_path / "out")
