"""Onboard a client that never trained: from a run directory and its images to a network and its accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fedrbn.errors import OnboardingError
from fedrbn.models import onboarding
from fedrbn.models.export import Exported, describe, export_network
from fedrbn.models.newcomer_data import newcomer_data, some
from fedrbn.models.onboarding import Newcomer, Score
from fedrbn.nets.dual_bn import plain
from fedrbn.runs.load import Trained, load


@dataclass(frozen=True)
class Onboarded:
    """A newcomer's network, and, with labelled test images, its accuracy compared with other networks."""

    trained: Trained
    newcomer: Newcomer
    domain: str
    scores: list[Score]

    @property
    def network(self) -> nn.Module:
        """An ordinary network: pixels in [0, 1] to logits, through the branch to predict with."""
        return plain(self.newcomer.net, self.newcomer.branch)

    def export(self, path: Path | str) -> Exported:
        """Write the network and its accuracy; the suffix decides the format: .safetensors, .onnx or .pt2."""
        measured = {"sa": self.scores[0].sa, "ra": self.scores[0].ra} if self.scores else {}
        card = describe(self.trained, self.newcomer.branch, client="newcomer", domain=self.domain, **measured)
        return export_network(self.network, card, path)


def onboard(
    run: Path | str,
    data: str,
    domain: str | None = None,
    *,
    batches: int = onboarding.BATCHES,
    steps: int = 0,
    samples: int | None = None,
) -> Onboarded:
    """Make a network for a client that was not part of a trained run, from the client's images.

    `data` is a data set, a folder `root/<domain>/<class>/*`, or a folder of unlabelled images. BN_c is measured on at
    most `batches` batches of 64 images; BN_a comes from similar AT users. `steps` of calibration need labels. The
    network is compared with others on at most `samples` test images.
    """
    trained = load(run)
    found = newcomer_data(trained, data, domain)
    newcomer = onboarding.onboard(trained, found.images, batches_seen=batches)
    if steps:
        if found.labelled is None:
            raise OnboardingError(
                f"got {steps} steps of calibration with unlabelled images; expected class folders. Leave the steps out."
            )
        newcomer = onboarding.calibrate(trained, newcomer, found.labelled, steps)
    scores: list[Score] = []
    if found.test is not None:
        scores = onboarding.compare(trained, newcomer, found.domain, some(found.test, samples))
    return Onboarded(trained, newcomer, found.domain, scores)
