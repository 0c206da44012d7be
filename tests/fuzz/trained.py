"""Hostile run directories and model files: every file of a real, tiny run, changed in every way that comes to mind."""

from __future__ import annotations

import functools
import io
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from PIL import Image

import fedrbn
from fedrbn import config
from fedrbn.federated.training.memory import recall, remember
from fedrbn.models import model_file
from fedrbn.models.export import export_client
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import load
from fedrbn.runs.measured import measured_seconds
from fedrbn.runs.recovery import recover
from fuzz.cases import ACCEPTED, REFUSED, Subject, command, refusal
from fuzz.configs import as_toml
from fuzz.mutations import ODD_TEXTS, another_json, another_jsonl, another_safetensors, another_tree, mutated, texts

SETTINGS: dict[str, Any] = {
    "data": {"domains": ["plain", "pen"]},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 4},
    "model": {"width": 1 / 16},
    "train": {"rounds": 2, "validate_every": 1, "lr": 0.05},
    "attack": {"steps": 1},
    "run": {"workers": 1},
}
CLIENT = "pen-1"
FILES = (
    "config.toml",
    "rounds.jsonl",
    "evaluations.jsonl",
    "federation.json",
    "last.safetensors",
    "best.safetensors",
    "answers/0.safetensors",
)
UNUSUAL = (".lock", "stops.jsonl", "last.previous.safetensors", "answers", "clients", f"clients/{CLIENT}")
"""What else a run directory can hold."""
INSTEAD = ("missing", "folder", "loop", "elsewhere", "linked folder", "hard link", "pipe", "sparse")
"""What can be there in place of a file."""


@functools.cache
def original() -> dict[str, bytes]:
    """The files of a finished run of four clients and two rounds."""
    with tempfile.TemporaryDirectory() as folder:
        fedrbn.run(config.make(SETTINGS), Path(folder) / "run")
        return {name: (Path(folder) / "run" / name).read_bytes() for name in FILES}


@functools.cache
def model(suffix: str) -> bytes:
    """A model file of one client of that run."""
    with tempfile.TemporaryDirectory() as folder:
        _write(original(), Path(folder) / "run")
        return export_client(Path(folder) / "run", CLIENT, Path(folder) / f"m{suffix}").path.read_bytes()


def _write(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def changed(name: str) -> st.SearchStrategy[bytes]:
    """Other contents of a file, by what it is."""
    content = original()[name]
    by_suffix: dict[str, Callable[[bytes], st.SearchStrategy[bytes]]] = {
        ".toml": lambda whole: another_tree(tomllib.loads(whole.decode())).map(as_toml),
        ".json": another_json,
        ".jsonl": another_jsonl,
        ".safetensors": another_safetensors,
    }
    swapped = st.sampled_from([other for other in FILES if other != name]).map(lambda other: original()[other])
    return st.one_of(
        by_suffix[Path(name).suffix](content), by_suffix[Path(name).suffix](content), mutated(content), swapped
    )


@st.composite
def damage(draw: st.DrawFn, files: tuple[str, ...]) -> tuple[str, bytes | str]:
    """A file of the run, and its new content, or what it is instead of a file."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from((*files, *UNUSUAL))), draw(st.sampled_from(INSTEAD))
    name = draw(st.sampled_from(files))
    return name, draw(changed(name))


def damaged(given: tuple[str, bytes | str], folder: Path) -> Path:
    """The run with that damage."""
    name, content = given
    run = _write({other: whole for other, whole in original().items() if other != name}, folder / "run")
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        _plant(path, content, folder.parent / "outside")
    return run


def _plant(path: Path, what: str, outside: Path) -> None:
    """Put something else in the place of a file."""
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "sparse":
        with path.open("wb") as file:
            file.truncate(3 * 2**29)
    elif what == "hard link":
        path.hardlink_to(outside / "precious")
    elif what != "missing":
        targets = {"loop": Path(path.name), "elsewhere": outside / "precious", "linked folder": outside}
        path.symlink_to(targets[what])


def try_loading(given: tuple[str, bytes | str], folder: Path) -> None:
    trained = load(damaged(given, folder))
    for client in trained.clients[:3]:
        trained.client(client)
    trained.newcomer()


def try_reading(given: tuple[str, bytes | str], folder: Path) -> str:
    """All that is read of a run without training: each part works or is refused by itself."""
    path = damaged(given, folder)
    directory = RunDirectory(path)
    parts: list[Callable[[], object]] = [
        directory.experiment,
        directory.description,
        directory.answers,
        lambda: recover(directory),
        lambda: directory.checkpoint("last"),
        lambda: directory.checkpoint("best"),
        lambda: directory.records("rounds.jsonl"),
        lambda: measured_seconds(path),
    ]
    return REFUSED if REFUSED in [refusal(part) for part in parts] else ACCEPTED


def try_export(given: tuple[str, bytes | str], folder: Path) -> str:
    run = damaged(given, folder)
    told = command("export", str(run), "--client", CLIENT, "--out", str(folder / "m.safetensors"))
    assert (folder / "m.safetensors").exists() == (told == ACCEPTED)
    return told


def try_resume(given: tuple[str, bytes | str], folder: Path) -> str:
    return command("run", "-q", "--resume", str(damaged(given, folder)), "--workers", "1")


def try_evaluate(given: tuple[str, bytes | str], folder: Path) -> str:
    return command("evaluate", "-q", str(damaged(given, folder)), "--no-adaptive", "--no-checks", "--samples", "2")


def try_against(given: tuple[str, bytes | str], folder: Path) -> str:
    """Another run that is compared with."""
    run = _write(original(), folder / "good")
    other = damaged(given, folder)
    return command(
        "evaluate", "-q", str(run), "--no-adaptive", "--no-checks", "--samples", "4", "--against", str(other)
    )


def try_watch(given: tuple[str, bytes | str], folder: Path) -> str:
    return command("watch", str(damaged(given, folder)), "--every", "0.1")


def try_report(given: tuple[str, bytes | str], folder: Path) -> str:
    return command(
        "report", str(damaged(given, folder)), "--no-images", "--no-checks", "--out", str(folder / "page.html")
    )


def try_client_id(given: tuple[str, str], folder: Path) -> None:
    """A client whose id is a path: what it remembers is kept inside the store, or it is refused."""
    client, text = given
    store = folder / "clients"
    memory = {"noise": torch.zeros(2)}
    remember(store, client, 2, memory)
    assert recall(store, client, 2).keys() == memory.keys()
    assert [path.parent.parent for path in store.rglob("*.safetensors")] == [store]
    recall(store, text, 1)


def try_exported_client(client: str, folder: Path) -> str:
    run = _write(original(), folder / "run")
    assert command("export", str(run), f"--client={client}", "--out", str(folder / "m.safetensors")) == REFUSED
    return REFUSED


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 10, 10)).save(buffer, format="PNG")
    return buffer.getvalue()


def try_model(suffix: str) -> Callable[[bytes, Path], None]:
    def attempt(content: bytes, folder: Path) -> None:
        (folder / f"m{suffix}").write_bytes(content)
        (folder / "x.png").write_bytes(picture())
        read = model_file.read(folder / f"m{suffix}")
        model_file.predict(read, [folder / "x.png"])

    return attempt


@st.composite
def another_onnx(draw: st.DrawFn, content: bytes) -> bytes:
    """An ONNX file with its beginning, its end or anything changed: in the middle are mostly weights."""
    edge = 4000
    where = draw(st.sampled_from(["begins", "ends", "anywhere"]))
    if where == "begins":
        return draw(mutated(content[:edge])) + content[edge:]
    return content[:-edge] + draw(mutated(content[-edge:])) if where == "ends" else draw(mutated(content))


def try_picture(content: bytes, folder: Path) -> str:
    (folder / "m.safetensors").write_bytes(model(".safetensors"))
    (folder / "x.png").write_bytes(content)
    return command("predict", str(folder / "m.safetensors"), str(folder / "x.png"))


ids = st.one_of(st.sampled_from([*ODD_TEXTS, "../x", "a/../../x", "x" * 300, "ü", "a b", "a\n"]), texts)
arguments = ids.map(lambda text: text.replace("\0", "0").encode("utf-8", errors="replace").decode())
passive = tuple(name for name in FILES if name != "config.toml")
"""Files that do not say how long to train."""

SUBJECTS = [
    Subject("run directory: load", st.deferred(lambda: damage(FILES)), try_loading, weight=10),
    Subject("run directory: read", st.deferred(lambda: damage(FILES)), try_reading, weight=20),
    Subject("run directory: export", st.deferred(lambda: damage(FILES)), try_export, weight=2),
    Subject("run directory: resume", st.deferred(lambda: damage(passive)), try_resume, weight=1),
    Subject("run directory: evaluate", st.deferred(lambda: damage(passive)), try_evaluate, weight=1),
    Subject("run directory: against", st.deferred(lambda: damage(passive)), try_against, weight=1),
    Subject("run directory: watch", st.deferred(lambda: damage(FILES)), try_watch, weight=3),
    Subject("run directory: report", st.deferred(lambda: damage(FILES)), try_report, weight=2),
    Subject("client ids: memory", st.tuples(ids, ids), try_client_id, weight=10),
    Subject("client ids: export", arguments, try_exported_client, weight=2),
    Subject(
        "model file: safetensors",
        st.deferred(lambda: another_safetensors(model(".safetensors"))),
        try_model(".safetensors"),
    ),
    Subject("model file: ONNX", st.deferred(lambda: another_onnx(model(".onnx"))), try_model(".onnx"), weight=5),
    Subject("model file: pt2 without trust", st.binary(max_size=40), try_model(".pt2"), weight=1),
    Subject("command line: predict", mutated(picture()), try_picture, weight=2),
]
