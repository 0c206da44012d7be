"""What an experiment costs: multiply-accumulates (MACs) per epoch in two counts, and bytes on the network.

    cost_of(assembly)["macs_per_epoch"]     # {"paper": 2943630704640, "actual": 2257778503680}
    cost(experiment, scale="paper")         # the same from declared sizes: no image is opened

`paper` is the convention behind the paper's column T. The cost of an image is in forward passes; a backward pass counts
as two: ST 3, PNC 6, PNC with λ = 1 4, AT with n steps (n + 1)·3. Every user's images are rounded up to whole batches. A
forward pass counts the MACs of convolutions and linear layers, plus two for every number that batch norm outputs.
`actual` is what our code executes while a client with each duty trains, by the formulas of PyTorch's flop counter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedrbn.config import Experiment
from fedrbn.cost.units import PLAIN, units
from fedrbn.data.declared import PAPER, DeclaredSizes, declared
from fedrbn.data.samples import Client, Samples
from fedrbn.errors import ConfigError, FederationError
from fedrbn.federated.aggregation.layout import Layout
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import Method
from fedrbn.federated.objectives import Fractional, OneStep, Standard
from fedrbn.federated.prepared_experiment import PreparedExperiment
from fedrbn.federated.protocol import Failure, Round, Train
from fedrbn.federated.schedule import Phase
from fedrbn.federated.server import Plan
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet
from fedrbn.nets.state import tensors
from fedrbn.randomness import generator
from fedrbn.types import Branch, Duty, Member, Role, Stats

_BATCH = 2
"""Images per batch of the trial: the minimum for batch norm. Operations are proportional to images."""
_BATCHES = 2
"""Batches in the trial: methods that adapt on one batch and train on another need two."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of the transferred tensors, without the overhead of the network protocol."""

    down: int
    up: int


def cost(experiment: Experiment, scale: DeclaredSizes | None = None) -> dict[str, Any]:
    """Count what an experiment costs, without running it; `scale="paper"` uses the paper's numbers of images.

    Keys of the result: `macs_per_epoch` of all clients and `macs_total` of all rounds, `macs_per_image` by duty, each
    as `paper` and `actual` count them; `bytes`, up and down, of a `client` by duty and of a `round`.
    """
    return cost_of(without_images(experiment, scale))


def without_images(experiment: Experiment, scale: DeclaredSizes | None = None) -> Assembly:
    """An experiment assembled from the declared sizes of its data; images are read only if no sizes are declared."""
    data = declared(experiment.data, scale)
    if data is None and scale is not None:
        raise ConfigError(
            f"got scale {scale!r} with data {experiment.data.name!r}; expected {' or '.join(PAPER)}, for which the "
            "paper's sizes are known. Leave the scale out."
        )
    run = experiment.run.model_copy(update={"device": "cpu", "workers": 1})
    return assemble(experiment.model_copy(update={"run": run}), data=data)


def cost_of(prepared: PreparedExperiment) -> dict[str, Any]:
    """The cost of a run as JSON values: MACs per epoch of all users, of all rounds, per image; bytes transferred.

    ST users count as calibrating if the method calibrates, as they do in all but the first few rounds. If clients are
    sampled or take turns (fine-tuning), a round is the mean of all rounds.
    """
    plan = prepared.plan
    paper, actual = paper_macs(prepared), actual_macs(prepared)
    client = {duty: traffic(prepared.net, plan.names, duty.role) for duty in duties(plan)}
    turns = {member: _turns(plan, member) for member in plan.members}
    return {
        "macs_per_epoch": per_epoch(plan, paper, actual),
        "macs_total": _total(plan, paper, actual),
        "macs_per_image": {str(duty): {"paper": paper[duty], "actual": actual[duty]} for duty in duties(plan)},
        "bytes": {
            "client": {str(duty): {"down": sent.down, "up": sent.up} for duty, sent in client.items()},
            "round": {
                "down": round(sum(client[member.duty].down * share for member, share in turns.items())),
                "up": round(sum(client[member.duty].up * share for member, share in turns.items())),
            },
        },
    }


def per_epoch(plan: Plan, paper: Mapping[Duty, int], actual: Mapping[Duty, int]) -> dict[str, int]:
    """Both counts of one epoch of all users, from the cost per image."""
    return {
        "paper": sum(paper[member.duty] * padded(plan, member) for member in plan.members),
        "actual": round(sum(actual[member.duty] * seen(plan, member) for member in plan.members)),
    }


def _total(plan: Plan, paper: Mapping[Duty, int], actual: Mapping[Duty, int]) -> dict[str, int]:
    """Both counts of all rounds."""
    epochs = [(member, _epochs(plan, phase, member)) for phase in plan.schedule.phases for member in plan.members]
    return {
        "paper": round(sum(paper[member.duty] * padded(plan, member) * count for member, count in epochs)),
        "actual": round(sum(actual[member.duty] * seen(plan, member) * count for member, count in epochs)),
    }


def paper_macs(prepared: PreparedExperiment) -> dict[Duty, int]:
    """The training cost of one image for each duty, in the paper's count."""
    forward = paper_forward_macs(prepared.net, prepared.outline.image_shape)
    return {duty: round(forward * paper_units(prepared, duty)) for duty in duties(prepared.plan)}


def paper_forward_macs(net: DualNet, image_shape: tuple[int, int, int]) -> int:
    """One image's forward pass in the paper's count: convolutions, linear layers, and batch norm.

    Batch norm is one multiply-accumulate for (x − μ)/σ and one for w·x + b.
    """
    elements = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG001
        nonlocal elements
        elements += output.numel()

    layers = [module for module in net.modules() if isinstance(module, DualBatchNorm)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    counter = Counter()
    try:
        with torch.no_grad(), counter:
            net(torch.zeros(1, *image_shape, device=next(net.parameters()).device), Branch.CLEAN, Stats.FROZEN)
    finally:
        for hook in hooks:
            hook.remove()
    return counter.macs + 2 * elements


def paper_units(prepared: PreparedExperiment, duty: Duty) -> float:
    """The training cost of one image in forward passes, in the paper's count, which omits the clean pass of AT."""
    method = prepared.plan.method
    standard = units(PLAIN, 0)
    if duty.role is Role.AT:
        if method.at_passes is not None:
            return standard * method.at_passes
        steps = getattr(prepared.attack, "steps", prepared.experiment.attack.steps)
        adversarial = units(Role.AT.duty, steps) - standard
        share = _adversarial_share(method, duty)
        return share * adversarial + (1 - share) * standard
    lam = method.calibration_weight(duty) if _calibrates(prepared.plan) else 0.0
    if lam == 0:
        return standard
    if isinstance(method.calibration, OneStep):  # two passes, each forward and backward, on its share of the batches
        return standard * (1 + method.calibration.share)
    return units(Duty(lam=lam), 0)


def actual_macs(prepared: PreparedExperiment) -> dict[Duty, int]:
    """The training cost of one image for each duty: everything that a real local update executes."""
    net, shape = copy.deepcopy(prepared.net), prepared.outline.image_shape
    return {duty: actual_macs_of(net, prepared.plan, duty, shape) for duty in duties(prepared.plan)}


def actual_macs_of(net: DualNet, plan: Plan, duty: Duty, image_shape: tuple[int, int, int]) -> int:
    """MACs per image of a local update by a client with this duty; changes the network's weights."""
    return round(sum(share * _trial(net, plan, method, duty, image_shape) for share, method in _kinds(plan, duty)))


def _kinds(plan: Plan, duty: Duty) -> list[tuple[float, Method]]:
    """If batches are of two random kinds, one method per kind with its share, so that no draws have to be averaged."""
    method = plan.method
    share = _adversarial_share(method, duty)
    if 0 < share < 1:
        whole = method.at.adversarial if isinstance(method.at, Fractional) else method.at
        one, other = (replace(method, at=objective) for objective in (whole, Standard()))
    elif duty.role is Role.ST and isinstance(method.calibration, OneStep):
        share = method.calibration.share
        one, other = (replace(method, calibration=replace(method.calibration, share=always)) for always in (1.0, 0.0))
    else:
        return [(1.0, method)]
    return [(share, one), (1 - share, other)]


def _adversarial_share(method: Method, duty: Duty) -> float:
    """The share of a client's batches that is adversarial, by its duty and by the method."""
    return duty.at_share * (method.at.share if isinstance(method.at, Fractional) else 1.0)


def _trial(net: DualNet, plan: Plan, method: Method, duty: Duty, image_shape: tuple[int, int, int]) -> float:
    """MACs per image of a client with a few random images; an AT user trains all of them with `method.at`."""
    whole = Role.AT.duty if duty.role is Role.AT else duty
    count = _BATCH * _BATCHES
    images = torch.randint(0, 256, (count, *image_shape), generator=generator(0, "cost"), dtype=torch.uint8)
    samples = Samples(images, torch.zeros(count, dtype=torch.int64))
    client = Client("trial", "trial", duty.role, samples, samples, samples)
    tuning = method.fine_tuning if duty.role is Role.ST else None
    round_ = Round(
        number=0,
        seed=0,
        method=method,
        shared={},
        lr=1e-6,
        batch_size=_BATCH,
        local_epochs=1,
        freeze=tuning.freeze if tuning else 0,
    )
    job = Train(client.id, whole, personal={}, calibrate=duty.role is Role.ST and _calibrates(plan))
    counter = Counter()
    with counter:
        (result,) = serial(ClientHost({client.id: client}, net))(round_, [job])
    if isinstance(result, Failure):
        raise FederationError(f"got a client that cannot train, so its cost cannot be counted: {result.cause}")
    return counter.macs / count


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the MACs of every operation executed within its block, by the formulas of PyTorch's flop counter.

    `FlopCounterMode` itself also tracks modules, which fails when an attack computes the gradient of the input only.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.macs: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Execute one operation; convolutions and matrix products are counted, forward and backward."""
        named = dict(kwargs or {})
        result = func(*args, **named)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.macs += formula(*args, **named, out_val=result) // 2  # a multiply-accumulate is two operations
        return result


def traffic(net: DualNet, names: Layout, role: Role) -> Traffic:
    """What a client of this role receives and sends in a round: θ and its own tensors; ST users do not send BN_a."""
    size = {name: tensor.nbytes for name, tensor in tensors(net).items()}
    kept = names.noised if role is Role.ST else frozenset[str]()
    return Traffic(down=sum(size.values()), up=sum(count for name, count in size.items() if name not in kept))


def padded(plan: Plan, member: Member) -> int:
    """A user's images per epoch as the paper counts them: whole batches."""
    size, fixed = plan.train.batch_size, plan.schedule.steps()
    return math.ceil(member.samples / size) * size if fixed is None else fixed * size // plan.train.local_epochs


def seen(plan: Plan, member: Member) -> float:
    """The images that a user actually trains on in an epoch."""
    fixed = plan.schedule.steps()
    if fixed is None:
        return member.samples
    passes, rest = divmod(fixed, steps_per_epoch(member.samples, plan.train.batch_size))
    images = passes * member.samples + min(rest * plan.train.batch_size, member.samples)
    return images / plan.train.local_epochs


def _epochs(plan: Plan, phase: Phase, member: Member) -> float:
    """Expected epochs of a member in a phase, over the sampling of clients."""
    if phase.iterations is None:
        count: float = phase.rounds * plan.train.local_epochs
    else:
        fixed = plan.schedule.steps()
        usual = steps_per_epoch(member.samples, plan.train.batch_size)
        count = phase.iterations / (usual if fixed is None else fixed / plan.train.local_epochs)
    return count * _chance(plan, phase, member)


def _turns(plan: Plan, member: Member) -> float:
    """The share of all rounds in which a member takes part."""
    return sum(phase.rounds * _chance(plan, phase, member) for phase in plan.schedule.phases) / plan.schedule.rounds


def _chance(plan: Plan, phase: Phase, member: Member) -> float:
    """The probability that a member takes part in a round of a phase."""
    candidates = sum(other.role in phase.roles for other in plan.members)
    return min(1.0, (plan.participants or candidates) / candidates) if member.role in phase.roles else 0.0


def duties(plan: Plan) -> list[Duty]:
    """The duties that occur, sorted from most to least AT."""
    return sorted(
        {member.duty for member in plan.members}, key=lambda duty: (-duty.at_share, duty.lam or 0.0, str(duty))
    )


def _calibrates(plan: Plan) -> bool:
    """Whether ST users calibrate: the method does so, and there is a donor of BN_a."""
    return plan.method.calibration is not None and any(member.role is Role.AT for member in plan.members)
