"""fedrbn predict: classify images with an exported model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrbn.cli.output import echo, print_json


def predict(
    model: Annotated[Path, typer.Argument(help="A file made by fedrbn export.")],
    images: Annotated[list[Path], typer.Argument(help="JPEG, PNG or WebP files.")],
    network: Annotated[
        str | None, typer.Option(help="package.module:factory of your own network, for .safetensors.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Read a .pt2 file, which can run code: only if you made it yourself.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Classify image files with an exported model."""
    from dataclasses import asdict

    from fedrbn.models import model_file

    found = model_file.predict(model_file.read(model, network=network, trust=trust), images)
    if as_json:
        print_json([asdict(prediction) for prediction in found])
        return
    for p in found:
        echo(f"{p.image}: {p.label} ({p.probability:.1%}; then {p.runner_up}, {p.runner_up_probability:.1%})")
