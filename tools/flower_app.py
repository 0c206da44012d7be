"""Generate the settings of the Flower app, flower/pyproject.toml, from the schema of an experiment.

    python tools/flower_app.py

Flower accepts a setting on the command line of `flwr run` only if the app's file has its key, so all keys are there and
generated.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from fedrbn import config
from fedrbn.flower.settings import FlowerConfig

APP = Path(__file__).parents[1] / "flower" / "pyproject.toml"
HEADER = "[tool.flwr.app.config]\n"
WITHHELD = ("attack", "malice")
"""Sections that nodes do not need: Flower sends the app's file to all of them."""
EMBEDDED = ("run.workers", "run.device")
"""Settings of embedded runs only."""


def offered() -> dict[str, dict[str, Any]]:
    """Every key by section, with an empty text, which leaves it unset; the server's keys have their defaults."""
    sections: dict[str, dict[str, Any]] = defaultdict(dict)
    for section, key, _, _ in config.reference():
        if section not in WITHHELD and f"{section}.{key}" not in EMBEDDED:
            sections[section][key] = ""
    return {**sections, "flower": FlowerConfig().model_dump()}


def written(app: str) -> str:
    """The app's file with generated settings: a line for each section."""
    head, _, _ = app.partition(HEADER)
    lines = [f"{section} = {_inline(keys)}\n" for section, keys in offered().items()]
    return head + HEADER + "".join(lines)


def _inline(keys: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in keys.items()) + " }"


if __name__ == "__main__":
    APP.write_text(written(APP.read_text(encoding="utf-8")), encoding="utf-8")
