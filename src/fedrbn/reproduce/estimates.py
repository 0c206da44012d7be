"""A rough estimate of an experiment's duration: multiply-accumulates over an assumed speed, without any measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from fedrbn import nets
from fedrbn.config import Experiment
from fedrbn.cost.count import paper_forward_macs
from fedrbn.cost.units import units
from fedrbn.data import AVAILABLE
from fedrbn.data.declared import PAPER
from fedrbn.data.federation import at_users
from fedrbn.nets.dual_bn import dual
from fedrbn.reproduce.experiment_cells import Cell
from fedrbn.types import Duty, Role

MACS_PER_SECOND = 35e9
"""Assumed for one core: at scale cpu, 40 and 27 · 10⁹ were measured for the networks of digits and photographs."""
SECONDS_PER_STEP = 0.004
"""Assumed overhead of each local step, per forward or backward pass."""
SECONDS_PER_RUN = 1.5
"""Assumed for reading the data."""
_CLASSES = 10
_CHANNELS = 3


def seconds(cells: Iterable[Cell]) -> float:
    """Seconds for all runs of these cells, one after another on one core; further attacks are not counted."""
    runs = {experiment.key(): experiment for cell in cells for experiment in cell.runs}
    return sum(run_seconds(experiment) for experiment in runs.values())


def run_seconds(experiment: Experiment) -> float:
    """Seconds for one run on one core: training and the final evaluation."""
    own, train = experiment.federation, experiment.train
    about = PAPER.get(experiment.data.name, AVAILABLE[experiment.data.name])
    ids = {name: [f"{name}-{i}" for i in range(own.users_per_domain)] for name in about.domains}
    users = sum(len(members) for members in ids.values())
    images = own.fraction * min(about.train) / own.users_per_domain * (1 - own.validation)
    duties = _duties(experiment, ids)
    passes = sum(units(duty, experiment.attack.steps) for duty in duties) / users
    taking_part = 1.0 if own.participants is None else own.participants / (1 if own.participants <= 1 else users)
    epochs = train.rounds * train.local_epochs * users * taking_part
    steps = math.ceil(images / train.batch_size)
    macs = _forward_macs(experiment.model.name, experiment.model.width, experiment.data.image_size or about.image_size)
    tested = min(about.test) if own.test_samples is None else own.test_samples * own.users_per_domain
    evaluation = tested * len(about.domains) * 3 * experiment.attack.steps * 2
    arithmetic = (epochs * passes * images + evaluation) * macs / MACS_PER_SECOND
    return arithmetic + epochs * passes / 3 * steps * SECONDS_PER_STEP + SECONDS_PER_RUN


def _duties(experiment: Experiment, users: Mapping[str, Sequence[str]]) -> list[Duty]:
    """Every user's duty once there are donors, including λ."""
    own = experiment.federation
    if own.duties is not None:
        return [each.duty for each in own.duties.clients.values()]
    at = at_users(users, own.at)
    standard = Duty(lam=experiment.method.lam if at else None)
    return [Role.AT.duty if user in at else standard for names in users.values() for user in names]


@cache
def _forward_macs(name: str, width: float, side: int) -> int:
    shape = (_CHANNELS, side, side)
    return paper_forward_macs(dual(nets.build(name, _CLASSES, width, shape, 0)), shape)
