"""Which clients train when: the rounds of a run, their phases, participants, steps and learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from fedrbn.config import TrainConfig
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.methods import Method
from fedrbn.randomness import generator
from fedrbn.types import Member, Role


@dataclass(frozen=True)
class Phase:
    """Consecutive rounds with the same participants; fine-tuning has two phases."""

    start: int
    rounds: int
    roles: frozenset[Role] = frozenset(Role)
    """Who takes part."""
    iterations: int | None = None
    """Total steps of every client in the phase; None means whole rounds."""
    freeze: int = 0
    """The number of first layers that are not trained."""


@dataclass(frozen=True)
class Schedule:
    """All rounds of a run. It depends on the members and the settings, not on weights."""

    members: tuple[Member, ...]
    method: Method
    train: TrainConfig
    seed: int
    participants: int | None = None
    """Clients sampled per round without replacement; None uses all."""
    equal_sizes: bool = True
    """If False, every client runs the mean number of iterations per epoch of all clients (unequal data)."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All rounds: `train.rounds` of them, fewer with Free AT, whose rounds cost more; then fine-tuning, if any."""
        first = Phase(0, math.ceil(self.train.rounds / self.method.replays))
        tuning = self.method.fine_tuning
        if tuning is None:
            return (first,)
        second = math.ceil(tuning.iterations / self._steps_per_round())
        return (
            replace(first, roles=frozenset({Role.AT})),
            Phase(first.rounds, second, frozenset({Role.ST}), tuning.iterations, tuning.freeze),
        )

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return sum(phase.rounds for phase in self.phases)

    def phase(self, number: int) -> Phase:
        """The phase of a round, counted from 0; after the last round, the last phase."""
        return [phase for phase in self.phases if phase.start <= number][-1]

    def may_choose(self, finished: int) -> bool:
        """Whether validation may select the state after this many rounds: only states of the last phase."""
        return finished > self.phases[-1].start

    def lr(self, number: int) -> float:
        """The learning rate of a round, counted from 0; the schedule restarts in each phase."""
        rate = self.method.rate or self.train.lr
        if self.train.schedule == "constant":
            return rate
        phase = self.phase(number)
        return rate * (1 + math.cos(math.pi * (number - phase.start) / phase.rounds)) / 2

    def sample(self, number: int) -> list[Member]:
        """The participants of a round, in the order of the members."""
        members = [member for member in self.members if member.role in self.phase(number).roles]
        if self.participants is None or self.participants >= len(members):
            return members
        random = generator(self.seed, "round", number, "participants")
        chosen = torch.randperm(len(members), generator=random)[: self.participants]
        return [members[i] for i in sorted(chosen.tolist())]

    def steps(self, number: int = 0) -> int | None:
        """The fixed number of iterations if data sizes differ or the phase sets them; None means whole epochs."""
        phase = self.phase(number)
        if phase.iterations is not None:
            usual = self._steps_per_round()
            return max(1, min(usual, phase.iterations - (number - phase.start) * usual))
        return None if self.equal_sizes else self._steps_per_round()

    def _steps_per_round(self) -> int:
        per_epoch = [steps_per_epoch(member.samples, self.train.batch_size) for member in self.members]
        return self.train.local_epochs * max(1, round(sum(per_epoch) / len(per_epoch)))
