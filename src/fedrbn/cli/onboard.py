"""fedrbn onboard: a robust model for a client that took no part in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrbn.cli.output import print_json, say
from fedrbn.errors import OnboardingError

if TYPE_CHECKING:
    from fedrbn.models.onboarding import Score
from fedrbn.cli.export import export_newcomer, newcomer_values, show_newcomer


def onboard(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    data: Annotated[
        str, typer.Option(help="The newcomer's images: a data set, a folder of domains, or a folder of images.")
    ],
    domain: Annotated[str | None, typer.Option(help="Which domain of the data; not needed if there is one.")] = None,
    batches: Annotated[int, typer.Option(min=1, help="Unlabelled batches of 64 images to measure BN_c on.")] = 8,
    steps: Annotated[int, typer.Option(min=0, help="Steps of pseudo-noise calibration; these need labels.")] = 0,
    samples: Annotated[int | None, typer.Option(min=1, help="Most test images to compare on.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the network: .safetensors, .onnx or .pt2.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Serve a client that never trained: BN_c from its images, BN_a from similar AT users; compare it with others."""
    from fedrbn.models import onboarding
    from fedrbn.models.newcomer_data import newcomer_data, some
    from fedrbn.runs.load import load

    trained = load(directory)
    found = newcomer_data(trained, data, domain)
    newcomer = onboarding.onboard(trained, found.images, batches_seen=batches)
    if steps:
        if found.labelled is None:
            raise OnboardingError(
                f"got --steps {steps} with unlabelled images; expected folders of classes. Leave --steps out."
            )
        newcomer = onboarding.calibrate(trained, newcomer, found.labelled, steps)
    scores: list[Score] = []
    if found.test is not None:
        scores = onboarding.compare(trained, newcomer, found.domain, some(found.test, samples))
    if as_json:
        print_json(newcomer_values(newcomer, scores, found.domain))
    else:
        show_newcomer(newcomer, scores, found.domain)
    if out is not None:
        exported = export_newcomer(trained, newcomer, scores, found.domain, out)
        say(f"wrote {exported.path}; logits agree to {exported.deviation:.1e}")
