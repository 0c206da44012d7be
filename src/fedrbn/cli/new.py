"""fedrbn new: a template for your own method, attack, aggregation rule, network or data set."""

from __future__ import annotations

import keyword
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from fedrbn.cli.output import say

Kind = Literal["method", "attack", "aggregation", "network", "data"]

USES: dict[Kind, str] = {
    "method": "fedrbn run --method {0}:{0}",
    "attack": "fedrbn run --set attack.name={0}:{0}, or fedrbn evaluate DIR --attacks {0}:{0}",
    "aggregation": "fedrbn run --set train.aggregation={0}:{0}",
    "network": "fedrbn run --set model.name={0}:{0}",
    "data": "fedrbn run --data {0}:{0}",
}
"""How to use each kind, from the folder that contains its file."""


def new(
    kind: Annotated[Kind, typer.Argument(help=f"{', '.join(get_args(Kind))}.")],
    name: Annotated[str, typer.Argument(help="Name of the file NAME.py and of the object in it.")],
    folder: Annotated[Path, typer.Option(help="Where the files are written.")] = Path(),
) -> None:
    """Write a working example, NAME.py, and its test, test_NAME.py, as a starting point for your own code."""
    from fedrbn.errors import ConfigError
    from fedrbn.files import write_atomically

    if not name.isidentifier() or keyword.iskeyword(name):
        fitting = "".join(c if c.isalnum() else "_" for c in name)
        guess = f" Did you mean {fitting}?" if fitting.isidentifier() else ""
        raise ConfigError(f"got the name {name!r}; expected only letters, digits and underscores.{guess}")
    texts = skeleton(kind, name)
    for file in texts:
        if (folder / file).exists():
            raise ConfigError(f"got {folder / file}, which already exists; expected a new name. Choose another.")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        write_atomically(folder / file, text.encode())
    say(f"wrote {' and '.join(str(folder / file) for file in texts)}")
    first = "" if find_spec("pytest") else "pip install pytest, then "
    say(f"use it: {USES[kind].format(name)}\ntest it: {first}pytest {folder / f'test_{name}.py'}")


def skeleton(kind: Kind, name: str) -> dict[str, str]:
    """The files of a new object of this kind, by their names."""
    templates = files("fedrbn.cli") / "templates"
    sources = {f"{name}.py": f"{kind}.py.txt", f"test_{name}.py": f"test_{kind}.py.txt"}
    return {
        file: (templates / source).read_text(encoding="utf-8").replace("NAME", name) for file, source in sources.items()
    }
