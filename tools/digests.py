"""Digests of the results of runs, to show that a refactoring changes no number.

    python tools/digests.py before.json          # in the old tree
    python tools/digests.py after.json && diff before.json after.json

Three rounds of the demo, two small rounds of every method, and a federation over Flower messages. A digest covers the
weights of the last checkpoint, every number in the records except seconds, and the answer to every test sample. Digests
depend on processor and library versions: compare only digests from the same machine.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fedrbn.cli import app
from fedrbn.federated.methods import METHODS

ROOT = Path(__file__).parents[1]
TINY = (
    "federation.users_per_domain=2", "federation.at=0.5", "federation.fraction=0.03", "federation.test_samples=8",
    "model.width=0.0625", "train.lr=0.05", "train.validate_every=1", "attack.steps=2",
)  # fmt: skip
NOT_NUMBERS = ("seconds", "versions", "key", "precision", "created", "memory")
"""Keys of records that say when or by which version a number was made."""


def fedrbn(*arguments: str) -> None:
    """Call the command line in this process."""
    app(arguments, standalone_mode=False)


def digest(run: Path) -> str:
    """The digest of all results in a run directory."""
    hasher = hashlib.sha256()
    for path in [run / "last.safetensors", *sorted((run / "answers").glob("*.safetensors"))]:
        for name, content in _tensors(path):
            hasher.update(name.encode() + content)
    for name in ("rounds.jsonl", "evaluations.jsonl"):
        for line in (run / name).read_text(encoding="utf-8").splitlines():
            hasher.update(json.dumps(_numbers(json.loads(line)), sort_keys=True).encode())
    return hasher.hexdigest()[:16]


def _tensors(path: Path) -> Iterator[tuple[str, bytes]]:
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            yield name, file.get_tensor(name).contiguous().numpy().tobytes()


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(inner) for key, inner in value.items() if key not in NOT_NUMBERS}
    return [_numbers(inner) for inner in value] if isinstance(value, list) else value


def embedded(folder: Path) -> dict[str, str]:
    """The demo, and every method."""
    found = {}
    demo = folder / "demo"
    fedrbn("run", "demo", "--rounds", "3", "--out", str(demo), "-q")
    found["demo"] = digest(demo)
    for method in METHODS:
        out = folder / method
        settings = [part for setting in TINY for part in ("--set", setting)]
        fedrbn("run", "--method", method, "--rounds", "2", *settings, "--workers", "1", "--out", str(out), "-q")
        found[method] = digest(out)
    return found


def over_flower(folder: Path) -> dict[str, str]:
    """A small federation whose jobs and results are sent as Flower messages."""
    sys.path.insert(0, str(ROOT / "tests"))
    small = importlib.import_module("flower.small")
    small.served(folder, "flower", small.experiment())
    return {"flower": digest(folder / "flower")}


def main() -> None:
    """Write the digests to the file given."""
    with tempfile.TemporaryDirectory() as folder:
        found = embedded(Path(folder)) | over_flower(Path(folder))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
