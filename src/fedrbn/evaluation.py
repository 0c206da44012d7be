"""Accuracy with and without an adversary, sample by sample; attack and prediction share a branch unless asked.

A `Question` is one column of a table: which branch predicts, what happens to the images first, and through which
branches the adversary looks. Answers are kept per sample, so any two of them can be compared pairwise or combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedrbn.attacks import Attack
from fedrbn.data.samples import Samples
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Branch, Stats

BATCH = 250
"""Images per forward pass in evaluation. The random start of an attack is drawn batch by batch."""


@dataclass(frozen=True)
class Question:
    """Is the prediction of `predict` right, on clean images or after `attack` through `attacked`?"""

    predict: Branch
    attack: Attack | None = None
    attacked: Branch | None = None
    """The branch the adversary looks through; None is the predicting one."""

    @property
    def name(self) -> str:
        """A name for records: clean@noised, attacked@noised, or attacked@clean through noised."""
        if self.attack is None:
            return f"clean@{self.predict.value}"
        through = "" if self.attacked in (None, self.predict) else f" through {self.attacked.value}"
        return f"attacked@{self.predict.value}{through}"


def ask(net: DualNet, samples: Samples, question: Question, generator: Generator) -> Tensor:
    """Which samples are predicted right, as booleans in the order of the samples."""
    device = next(net.parameters()).device
    answers = [torch.zeros(0, dtype=torch.bool)]
    for start in range(0, len(samples), BATCH):
        x, y = samples.pixels(slice(start, start + BATCH))
        answers.append(_right(net, x.to(device), y.to(device), question, generator))
    return torch.cat(answers)


def _right(net: DualNet, x: Tensor, y: Tensor, question: Question, generator: Generator) -> Tensor:
    branch = question.attacked or question.predict
    if question.attack is not None:
        x = question.attack(lambda z: F.cross_entropy(net(z, branch), y, reduction="none"), x, generator)
    with torch.no_grad():
        predicted: Tensor = net(x, question.predict, Stats.FROZEN).argmax(1)
    return (predicted == y).cpu()


def standard_questions(branches: Sequence[Branch], attack: Attack) -> tuple[Question, ...]:
    """SA and RA of each branch, each attacked through itself."""
    return tuple(q for branch in branches for q in (Question(branch), Question(branch, attack)))
