"""The commands about data, as they are typed."""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from fedrbn.cli import app


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["data", *arguments])


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    folder = tmp_path / "downloads"
    folder.mkdir()
    for prefix in ("train", "t10k"):
        for kind, shape in (("images-idx3", (10, 28, 28)), ("labels-idx1", (10,))):
            content = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(int(np.prod(shape)))
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two domains of two classes, ten images each."""
    noise = np.random.default_rng(0).integers(256, size=(40, 12, 16, 3), dtype=np.uint8)
    for row, image in enumerate(noise):
        path = tmp_path / "photos" / ("day", "night")[row % 2] / ("cat", "dog")[row // 2 % 2] / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "photos"


def test_where_names_every_set_and_its_files() -> None:
    result = _run("prepare", "--where")
    assert result.exit_code == 0
    for text in (
        "--as mnist:",
        "t10k-labels-idx1-ubyte.gz",
        "Netzer",
        "usps.t.bz2",
        "Ganin",
        "caltech10",
        "sketch.zip",
    ):
        assert text in result.output


def test_where_is_quick() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from fedrbn.cli import app;"
        "CliRunner().invoke(app, ['data', 'prepare', '--where']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_prepare_writes_where_it_is_told(mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    result = _run("prepare", str(mnist), "--as", "mnist", "-o", str(tmp_path / "out"))
    assert result.exit_code == 0
    assert f"wrote {tmp_path}/out/digits/mnist.npz" in result.output
    assert f"export FEDRBN_DATA={tmp_path}/out" in result.output
    assert (tmp_path / "out" / "digits" / "checksums.json").is_file()


def test_prepare_writes_to_the_variable(mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path / "set"))
    result = _run("prepare", str(mnist), "--as", "mnist")
    assert result.exit_code == 0
    assert (tmp_path / "set" / "digits" / "mnist.npz").is_file()
    assert "export" not in result.output


def test_prepare_explains_what_is_missing(mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRBN_DATA", raising=False)
    assert "got neither --out nor FEDRBN_DATA" in str(_run("prepare", str(mnist), "--as", "mnist").exception)
    assert "expected fedrbn data prepare FOLDER --as mnist" in str(_run("prepare", str(mnist)).exception)


def test_check_shows_counts_and_passes(photos: Path) -> None:
    result = _run("check", str(photos))
    assert result.exit_code == 0
    assert "photos: train / test images" in result.output
    assert "8 / 2" in result.output
    assert "16, 16, 16" in result.output
    assert "broken files: none" in result.output
    assert "test images that are training images: none" in result.output


def test_check_fails_for_broken_files(photos: Path) -> None:
    (photos / "day" / "cat" / "x.png").write_bytes(b"no image")
    result = _run("check", str(photos))
    assert result.exit_code == 1
    assert "broken files: 1\n  got day/cat/x.png, which is not a JPEG, PNG or WebP" in result.output


def test_check_fails_for_leaks_and_speaks_json(photos: Path) -> None:
    for path in (photos / "day" / "cat").iterdir():  # ten times the same picture: both parts have it
        Image.new("RGB", (9, 9), "red").save(path)
    result = _run("check", str(photos), "--json")
    report = json.loads(result.output)
    assert result.exit_code == 1
    assert report["passed"] is False
    assert [pair["test"].split("/")[1] for pair in report["exact"]] == ["cat", "cat"]
    assert report["domains"][0]["train"] == {"cat": 8, "dog": 8}
    assert report["domains"][0]["heights"] == [9, 10.5, 12]


def test_long_lists_are_cut(photos: Path) -> None:
    for i in range(25):
        (photos / "day" / "cat" / f"x{i:02}.png").write_bytes(b"")
    assert "and 5 more (--json has all)" in _run("check", str(photos)).output


def test_list_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRBN_DATA", str(tmp_path))
    (tmp_path / "office_caltech10").mkdir()
    lines = {line.split()[1]: line for line in _run("list").output.splitlines() if line.startswith("│ ")}
    assert "embedded" in lines["digits-mini"]
    assert "yes, in FEDRBN_DATA" in lines["office-caltech10"]
    assert "no: not in FEDRBN_DATA" in lines["domainnet"]
    monkeypatch.delenv("FEDRBN_DATA")
    assert "no: set FEDRBN_DATA" in _run("list").output


def test_preview_of_a_folder(photos: Path, tmp_path: Path) -> None:
    result = _run("preview", str(photos), "-o", str(tmp_path / "sheet.png"), "--image-size", "16")
    assert result.exit_code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 0


@pytest.mark.slow
def test_hostile_files_end_in_a_message(mnist: Path, tmp_path: Path) -> None:
    (mnist / "train-images-idx3-ubyte.gz").write_bytes(b"\x1f\x8b garbage")
    command = [sys.executable, "-c", "from fedrbn.cli import main; main()", "data", "prepare", str(mnist)]
    done = subprocess.run([*command, "--as", "mnist", "-o", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: got train-images-idx3-ubyte.gz, which cannot be read")
    assert "Traceback" not in done.stderr


def test_check_lists_ignored_files(photos: Path) -> None:
    (photos / "day" / "cat" / "x.gif").write_bytes(b"GIF89a")
    result = _run("check", str(photos))
    assert result.exit_code == 0
    assert "ignored files: 1\n  day/cat/x.gif: with the suffix .gif" in result.output


def test_check_fails_with_one_class(photos: Path) -> None:
    for domain in ("day", "night"):
        for path in (photos / domain / "dog").iterdir():
            path.unlink()
    result = _run("check", str(photos))
    assert result.exit_code == 1
    assert "got training images of 1 class; expected at least two. Add a class." in result.output
