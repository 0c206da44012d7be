"""fedrbn probe: measure what this machine can do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrbn.cli.output import echo, print_json


def probe(
    config_file: Annotated[
        Path | None,
        typer.Argument(help="A TOML file of settings or a fleet that names the network; default: the digits network."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    url: Annotated[str | None, typer.Option(help="Also measure the download speed from this http(s) address.")] = None,
    classes: Annotated[int, typer.Option(help="Number of classes of the network.")] = 10,
    image_size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 28,
    as_json: Annotated[
        bool, typer.Option("--json", help='Print JSON, for `probe = "file.json"` in a fleet file.')
    ] = False,
) -> None:
    """Measure what this machine can do: forward, backward and attack speed, memory, bandwidth."""
    from dataclasses import asdict

    from fedrbn import config
    from fedrbn.fleet import probe as probing

    values = config.read(config_file) if config_file else {}
    experiment = config.make({key: part for key, part in values.items() if key in config.Experiment.model_fields})
    side = experiment.data.image_size or image_size
    shape = (3, side, side)
    net = probing.network(experiment, classes, shape)
    found = probing.probe(net, shape, experiment.train.batch_size, seconds, url)
    if as_json:
        print_json(asdict(found))
        return
    speed, giga = found.speed, 1e9
    echo(f"network           {experiment.model.name}, width {experiment.model.width:g}, {side}x{side} pixels")
    echo(f"forward           {speed.forward / giga:.2f} GMAC/s")
    echo(f"backward          {speed.backward / giga:.2f} GMAC/s")
    echo(f"attack step       {speed.attack / giga:.2f} GMAC/s")
    echo(f"free memory       {'unknown' if found.memory is None else f'{found.memory / giga:.1f} GB'}")
    echo(f"memory bandwidth  {found.memory_bandwidth / giga:.1f} GB/s")
    echo(f"download          {'not measured' if found.bandwidth is None else f'{found.bandwidth / 1e6:.1f} MB/s'}")
