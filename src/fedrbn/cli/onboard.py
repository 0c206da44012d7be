"""fedrbn onboard: a robust model for a client that took no part in training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrbn.cli.export import newcomer_values, show_newcomer
from fedrbn.cli.output import print_json, say


def onboard(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    data: Annotated[
        str, typer.Option(help="The newcomer's images: a data set, a folder of domains, or a folder of images.")
    ],
    domain: Annotated[str | None, typer.Option(help="The domain of the data; not needed if there is only one.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 64 unlabelled images to measure BN_c on.")] = 8,
    steps: Annotated[int, typer.Option(min=0, help="Steps of pseudo-noise calibration; needs labels.")] = 0,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of test images for the comparison.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the network: .safetensors, .onnx or .pt2.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a model for a client that never trained: BN_c from its images, BN_a from similar AT users; compare it."""
    from fedrbn.models import onboarded

    found = onboarded.onboard(directory, data, domain, batches=batches, steps=steps, samples=samples)
    if as_json:
        print_json(newcomer_values(found.newcomer, found.scores, found.domain))
    else:
        show_newcomer(found.newcomer, found.scores, found.domain)
    if out is not None:
        exported = found.export(out)
        say(f"wrote {exported.path}; logits agree to {exported.deviation:.1e}")
