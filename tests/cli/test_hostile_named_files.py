"""Files that a user, or another file, names: what is no regular file, or too long to be one of ours, is refused."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrbn import files
from fedrbn.data.prepare import read_checksums
from fedrbn.data.raw.files import content_of, file_source, image_content
from fedrbn.data.sets import cache
from fedrbn.fleet.description import EXAMPLE
from fedrbn.reproduce.table_file import read_table
from fuzz.cases import REFUSED, command, refusal
from time_limit import in_time

SECONDS = 20
GIGABYTES = 3 * 2**29


def pipe(path: Path) -> None:
    os.mkfifo(path)


def linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def bound_socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:  # names of sockets are short
        made.bind(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIGABYTES)


HARMS: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe,
    "a link to a pipe": linked_pipe,
    "a link to an endless device": endless,
    "a socket": bound_socket,
    "a folder": folder,
    "1.5 GB of zeros": sparse,
}


def of_fleet(path: Path) -> str:
    """A plan with a device whose speed is in the file."""
    start, _, _ = EXAMPLE.partition("[[device]]")
    device = f'[[device]]\nid = "a"\ndomain = "pen"\nsamples = 10\nprobe = "{path.name}"\n'
    path.with_name("fleet.toml").write_text(f"{start}{device}")
    return command("plan", str(path.with_name("fleet.toml")))


def of_predict(path: Path) -> str:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path.with_name("image.png"))
    return command("predict", str(path), str(path.with_name("image.png")))


def of_data(path: Path) -> str:
    return command("data", "preview", str(path.parent.parent.parent), "--out", str(path.with_name("sheet.png")))


USES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "settings of run": ("x.toml", lambda path: command("run", "-q", str(path), "--out", str(path.with_name("run")))),
    "settings of cost": ("x.toml", lambda path: command("cost", str(path))),
    "settings of compare": ("x.toml", lambda path: command("compare", str(path), "--out", str(path.parent / "runs"))),
    "settings of probe": ("x.toml", lambda path: command("probe", str(path), "--seconds", "0.1")),
    "settings of a deployment": (
        "x.toml",
        lambda path: command("deploy", "init", str(path.with_name("site")), "--nodes", "2", "--config", str(path)),
    ),
    "duties": ("x.toml", lambda path: command("cost", "--set", f"federation.duties={path}")),
    "fleet": ("x.toml", lambda path: command("plan", str(path))),
    "speed of a device": ("x.json", of_fleet),
    "model": ("x.safetensors", of_predict),
    "image of a folder": ("data/domain/class/x.png", of_data),
    "listed image": ("x.png", lambda path: refusal(lambda: image_content(path))),
    "published file": ("x.gz", lambda path: refusal(lambda: content_of(path))),
    "source of prepared data": ("x.npz", lambda path: refusal(lambda: file_source(path))),
    "checksums": ("checksums.json", lambda path: refusal(lambda: read_checksums(path.parent))),
    "reproduced table": ("table.json", lambda path: refusal(lambda: read_table(path))),
}
LARGE = ("published file", "source of prepared data")
"""What may be so large."""


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("use", USES)
def test_what_is_no_file_is_refused_at_once(use: str, harm: str, tmp_path: Path) -> None:
    if use in LARGE and harm == "1.5 GB of zeros":
        pytest.skip("a published file may be so large")
    name, attempt = USES[use]
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    HARMS[harm](path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with in_time(SECONDS):
        assert attempt(path) == REFUSED
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 300_000, "kilobytes"


@pytest.mark.parametrize("harm", HARMS)
def test_a_stored_data_set_that_is_no_file_is_generated_again(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path))
    HARMS[harm](tmp_path / "x.npz")

    def make() -> object:
        raise InterruptedError

    with in_time(SECONDS), pytest.raises(InterruptedError):
        cache.cached("x", cache.Expected(1, 1, (3, 8, 8), 10), make)  # type: ignore[arg-type]


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert files.read_named(tmp_path / "link", 7) == b"content"
    with pytest.raises(OSError, match="it has more than 6 bytes"):
        files.read_named(tmp_path / "link", 6)
