"""Test whether two runs differ by more than the chance of the test images: McNemar's exact test per sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedrbn.errors import EvaluationError
from fedrbn.types import Tensors


@dataclass(frozen=True)
class Comparison:
    """Two runs on the same test samples, for one column of their tables."""

    column: str
    samples: int
    ours: float
    theirs: float
    only_ours: int
    """Samples that only the first run gets right."""
    only_theirs: int
    p: float
    """Probability of a split at least this uneven if both were equally good (two-sided)."""


def compare(ours: Mapping[str, Tensors], theirs: Mapping[str, Tensors]) -> list[Comparison]:
    """Compare column by column, over all clients; both map client → column → one boolean per sample."""
    if ours.keys() != theirs.keys():
        raise EvaluationError(
            f"got runs with {len(ours)} and {len(theirs)} different clients; expected the same federation. "
            "Compare runs made with the same data, federation settings and seed."
        )
    columns = set.intersection(*(set(table) for table in (*ours.values(), *theirs.values())))
    return [_mcnemar(column, ours, theirs) for column in sorted(columns)]


def _mcnemar(column: str, ours: Mapping[str, Tensors], theirs: Mapping[str, Tensors]) -> Comparison:
    from scipy.stats import binomtest  # noqa: PLC0415  (a second of CPU that training does not need)

    for client in ours:
        if ours[client][column].shape != theirs[client][column].shape:
            raise EvaluationError(
                f"got {len(ours[client][column])} and {len(theirs[client][column])} test samples of client {client!r}; "
                "expected the same. Evaluate both runs on the same samples."
            )
    first = torch.cat([ours[client][column] for client in ours])
    second = torch.cat([theirs[client][column] for client in ours])
    only_ours, only_theirs = int((first & ~second).sum()), int((second & ~first).sum())
    differing = only_ours + only_theirs
    return Comparison(
        column=column,
        samples=len(first),
        ours=first.double().mean().item(),
        theirs=second.double().mean().item(),
        only_ours=only_ours,
        only_theirs=only_theirs,
        p=float(binomtest(only_ours, differing).pvalue) if differing else 1.0,
    )
