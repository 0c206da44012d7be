"""A model for a client that never trained: BN_c from a few unlabelled batches, BN_a from the AT users by Eqs. 3-4.

    newcomer = onboard(load("runs/first"), pictures)          # uint8 [n, channels, height, width], no labels
    newcomer.net(pixels, newcomer.branch)

The weights are the federation's. What is local to a client (all of batch norm, or its statistics) starts as the mean
over the participants; the statistics of BN_c are then measured on the newcomer's own images, and its BN_a is mixed from
donors whose clean statistics are similar, exactly as for an ST user. With labels, a few steps of pseudo-noise
calibration (Eq. 5) can follow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import cast

import torch
from torch import Tensor

from fedrbn.attacks import Untargeted, from_config
from fedrbn.data.samples import Samples
from fedrbn.errors import OnboardingError
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.federated.aggregation.layout import Local, layout
from fedrbn.federated.client import batches, pixels
from fedrbn.federated.objectives import evaluating
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.server import donor_weights, propagated
from fedrbn.federated.training.sgd import LocalTask, Sgd
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet
from fedrbn.nets.state import load, tensors
from fedrbn.randomness import generator
from fedrbn.runs.load import Trained
from fedrbn.types import Branch, Stats

NEWCOMER = "newcomer"
BATCHES, BATCH = 8, 64
"""How many images are used: one batch of 64 was as good as eight on two held-out domains of digits-mini."""


@dataclass(frozen=True)
class Newcomer:
    """A network for a client that never trained."""

    net: DualNet
    branch: Branch
    """The branch to predict with."""
    donors: dict[str, float]
    """The AT users whose BN_a was mixed, and their weights α (Eq. 4)."""
    images: int
    """How many images BN_c was measured on."""


@dataclass(frozen=True)
class Score:
    """Accuracy of one network on the newcomer's test images, clean and under attack, in the branch that predicts."""

    name: str
    branch: Branch
    sa: float
    ra: float


def onboard(trained: Trained, images: Tensor, *, batches_seen: int = BATCHES) -> Newcomer:
    """A network for a newcomer from some of its images, uint8 and unlabelled; at most `batches_seen` batches of 64."""
    _check(trained, images)
    net = trained.average()
    seen = images[: batches_seen * BATCH]
    measure_clean_statistics(net, seen)
    state, plan = trained.state, trained.plan
    own = {name: tensor for name, tensor in tensors(net).items() if name in plan.names.personal}
    state = replace(
        state, personal={**state.personal, NEWCOMER: own}, reported={**state.reported, NEWCOMER: state.round}
    )
    estimates = propagated(state, plan, [NEWCOMER])
    if not estimates:
        return Newcomer(net, Branch.CLEAN, {}, len(seen))
    load(net, estimates[NEWCOMER])
    donors, alpha = donor_weights(state, plan, [NEWCOMER])
    return Newcomer(net, plan.method.predict, dict(zip(donors, alpha[0].tolist(), strict=True)), len(seen))


def measure_clean_statistics(net: DualNet, images: Tensor) -> None:
    """Set BN_c to the statistics of these images: the mean over batches of 64 of each layer's batch statistics."""
    device = next(net.parameters()).device
    layers = [module for module in net.modules() if isinstance(module, DualBatchNorm)]
    for layer in layers:
        layer.clean.reset_running_stats()
    with torch.no_grad(), evaluating(net), _cumulative(layers):
        for part in _batches(images):
            net(part.to(device, torch.float32).div(255), Branch.CLEAN, Stats.BATCH)


def calibrate(trained: Trained, newcomer: Newcomer, labelled: Samples, steps: int, seed: int = 0) -> Newcomer:
    """`steps` steps of the method's calibration (Eq. 5 for FedRBN) on labelled images; BN_a stays as it is."""
    method, train = trained.plan.method, trained.experiment.train
    if not newcomer.donors or method.calibration is None:
        raise OnboardingError(
            f"got calibration steps for method {method.name!r} with {len(newcomer.donors)} donors; expected a newcomer "
            "with an estimated BN_a. Leave the steps out, or use a run of fedrbn or fedrbn+ with AT users."
        )
    if len(labelled) < 2:
        raise OnboardingError(
            f"got {len(labelled)} labelled images; expected at least 2 to calibrate with. Leave the steps out."
        )
    net = copy.deepcopy(newcomer.net)
    kept = layout(net, method.local).noised
    estimated = {name: tensor.clone() for name, tensor in tensors(net).items() if name in kept}
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name not in kept)
    order = batches(len(labelled), train.batch_size, steps, generator(seed, "onboard", "batches"))
    Sgd()(
        net.train(),
        pixels(labelled, order, next(net.parameters()).device),
        LocalTask(method.calibration, train.lr, generator(seed, "onboard", "objective")),
    )
    load(net, estimated)
    return Newcomer(net.eval(), newcomer.branch, newcomer.donors, newcomer.images)


def compare(trained: Trained, newcomer: Newcomer, domain: str, test: Samples, seed: int = 0) -> list[Score]:
    """Compare the newcomer's network with the alternatives, all on the newcomer's test images.

    The alternatives are the mean network before onboarding and the participants of the newcomer's domain. If the domain
    has no participants, the most similar participants are used instead.
    """
    same = [member.id for member in trained.plan.members if member.domain == domain]
    nearest = sorted(newcomer.donors, key=lambda donor: -newcomer.donors[donor])[:1]
    rivals = [("onboarded", newcomer.net, newcomer.branch), ("mean batch norm", trained.average(), newcomer.branch)]
    for client in same or nearest:
        member = trained.plan.members[trained.clients.index(client)]
        branch = predicting_branch(trained.plan, trained.state, member)
        role = f"{member.role.value}, {'same domain' if same else 'nearest donor'}"
        rivals.append((f"{client} ({role})", trained.dual_client(client), branch))
    return [_score(trained, name, net, branch, test, seed) for name, net, branch in rivals]


def _score(trained: Trained, name: str, net: DualNet, branch: Branch, test: Samples, seed: int) -> Score:
    attack = Untargeted(from_config(trained.experiment.attack))
    answers = Accuracy(branch, "attacked", attack)(net, test, generator(seed, "onboard", "evaluate", name))
    sa, ra = (fmean(answers[f"{key}@{branch.value}"].double().tolist()) for key in ("clean", "attacked"))
    return Score(name, branch, sa, ra)


def _check(trained: Trained, images: Tensor) -> None:
    if trained.plan.method.local in (Local.EVERYTHING, Local.NOTHING):
        why = (
            "shares no weights at all"
            if trained.plan.method.local is Local.EVERYTHING
            else "has one batch norm for all clients, which works for newcomers too: fedrbn.load(run).newcomer()"
        )
        raise OnboardingError(
            f"got a run of {trained.plan.method.name!r}, which {why}; expected a method with local batch norm, such "
            "as fedrbn or fatbn."
        )
    if images.dtype != torch.uint8 or tuple(images.shape[1:]) != trained.image_shape or len(images) < 2:
        raise OnboardingError(
            f"got images of {images.dtype} and shape {tuple(images.shape)}; expected at least 2 of uint8 and shape "
            f"{trained.image_shape}, as in the run. Resize them, and scale pixels to 0 … 255."
        )


def _batches(images: Tensor) -> Sequence[Tensor]:
    """Batches of 64; a last batch under a quarter of that is merged into the one before: its variance is too noisy."""
    parts = list(torch.split(images, BATCH))
    if len(parts) > 1 and len(parts[-1]) < BATCH // 4:
        last = torch.cat(parts[-2:])
        parts = [*parts[:-2], last]
    return parts


@contextmanager
def _cumulative(layers: Sequence[DualBatchNorm]) -> Iterator[None]:
    """Within this block running statistics are plain means over batches, not moving averages."""
    momenta = [layer.clean.momentum for layer in layers]
    for layer in layers:
        layer.clean.momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.clean.momentum = cast(float, momentum)
