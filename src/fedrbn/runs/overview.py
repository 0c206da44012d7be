"""Check whether a run can start, and describe it: network, images per user, memory, time, warnings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from fedrbn.attacks.check import check_attack
from fedrbn.config.plugins import is_reference
from fedrbn.cost.durations import duration
from fedrbn.cost.estimate import estimate
from fedrbn.federated import memory_need
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.objectives import evaluating, noised_loss
from fedrbn.nets.check import check_forward
from fedrbn.randomness import generator
from fedrbn.types import Role

_ATTACKED = 4
"""Images for the check of an own attack."""
FEW_IMAGES = 32
"""A user with fewer images makes only one or two steps per round, with batch norm over a few images."""


def ensure_ready(assembly: Assembly) -> None:
    """Refuse a network or an own attack that fails on these images, and a run that does not fit into memory."""
    federation, batch = assembly.federation, assembly.experiment.train.batch_size
    _ensure_fits(assembly)  # before the first whole batch, which could already take all memory
    check_forward(assembly.net, federation.clients[0].train.pixels(slice(0, batch))[0], len(federation.classes))
    _check_own_attack(assembly)


def _ensure_fits(assembly: Assembly) -> None:
    if next(assembly.net.parameters()).device.type != "cpu":
        return
    federation, batch = assembly.federation, assembly.experiment.train.batch_size
    try:
        needed = memory_need.of_run(assembly.net, federation, batch, assembly.workers)
    except Exception:  # the network fails on two images: `check_forward` explains it
        return
    memory_need.ensure_fits(
        needed.total,
        f"images of {federation.image_shape[1]} x {federation.image_shape[2]} pixels, train.batch_size = {batch} and "
        f"{assembly.workers} worker(s)",
        f"Weights take {memory_need.gigabytes(needed.weights)} of it, activations of batches "
        f"{memory_need.gigabytes(needed.activations)}: lower data.image_size, model.width, train.batch_size or "
        "run.workers.",
    )


def _check_own_attack(assembly: Assembly) -> None:
    name = assembly.experiment.attack.name
    if not is_reference(name):
        return
    net = copy.deepcopy(assembly.net)
    device = next(net.parameters()).device
    x, y = (part.to(device) for part in assembly.federation.clients[0].train.pixels(slice(0, _ATTACKED)))
    with evaluating(net):
        check_attack(name, assembly.attack, noised_loss(net, y), x, generator(0, "check the attack"))


def overview(assembly: Assembly, finished: int = 0) -> Iterator[str]:
    """The lines that describe the run after `finished` rounds; the last one measures a few steps first.

    They come one by one: a step of a large network takes long, and network and images should be shown before that.
    """
    plan, train = assembly.plan, assembly.experiment.train
    at = sum(member.role is Role.AT for member in plan.members)
    yield _network(assembly)
    yield f"{len(plan.members)} clients ({at} AT, {len(plan.members) - at} ST); {_images(assembly)}"
    yield from (*assembly.federation.remarks, *assembly.hints, *_few(assembly))
    needed = memory_need.of_run(assembly.net, assembly.federation, train.batch_size, assembly.workers)
    seconds = estimate(assembly, finished)
    times = {"start-up": seconds.startup, "training": seconds.training, "evaluation": seconds.evaluation}
    left = plan.schedule.rounds - finished
    yield (
        f"{left} {'round' if left == 1 else 'rounds'} to go, {assembly.workers} worker(s); estimated memory "
        f"{memory_need.gigabytes(needed.total)}; estimated time {duration(seconds.total)} "
        f"({', '.join(f'{name} {duration(each)}' for name, each in times.items())})"
    )


def _network(assembly: Assembly) -> str:
    model, shape = assembly.experiment.model, assembly.federation.image_shape
    width = "" if model.width == 1 else f", width {model.width:g}"
    parameters = sum(parameter.numel() for parameter in assembly.net.parameters())
    return (
        f"network {model.name}{width}: {parameters:,} parameters, input {' x '.join(map(str, shape))}, "
        f"{len(assembly.federation.classes)} classes"
    )


def _images(assembly: Assembly) -> str:
    clients = assembly.federation.clients
    counts = [[len(part) for part in (c.train, c.validation, c.test)] for c in clients]
    parts = zip(("train", "validation", "test"), zip(*counts, strict=True), strict=True)
    return "images per user: " + " / ".join(f"{name} {_range(found)}" for name, found in parts)


def _range(counts: Sequence[int]) -> str:
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)}-{max(counts)}"


def _few(assembly: Assembly) -> list[str]:
    """A warning if users have too few images to train on."""
    few = {c.id: len(c.train) for c in assembly.federation.clients if len(c.train) < FEW_IMAGES}
    if not few:
        return []
    fewest = min(few, key=lambda client: few[client])
    return [
        f"warning: {len(few)} of {len(assembly.federation.clients)} users train on fewer than {FEW_IMAGES} images "
        f"({fewest} on {few[fewest]}), which is too few for reliable results. {_remedy(assembly)}"
    ]


def _remedy(assembly: Assembly) -> str:
    """What gives users more training images: the settings that apply and are not at their limit yet."""
    settings, federation = assembly.experiment.federation, assembly.federation
    if len(federation.clients) != settings.users_per_domain * len(federation.domains):  # the data came divided
        return "Add images, or divide the data among fewer users."
    ways = [
        *(["lower federation.users_per_domain"] if settings.users_per_domain > 1 else []),
        *(["lower federation.validation"] if settings.validation > 0 else []),
        *(["raise federation.fraction"] if settings.fraction < 1 else []),
        "add images to the smallest domain",
    ]
    return f"To change that, {', '.join(ways[:-1])}{' or ' if len(ways) > 1 else ''}{ways[-1]}."
