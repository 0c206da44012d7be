"""Eqs. 3-4: estimate the missing BN_a of ST users from similar AT users.

    μ̂_a,k = Σ_j α_j μ_a,j     σ̂²_a,k = Σ_j α_j σ²_a,j                                              (Eq. 3)
    α_j = Softmax_T [ (1/L) Σ_l Sim^l(D_k, D_j) ],   Sim^l = [cos(μ_k^l, μ_j^l) + cos(σ²_k^l, σ²_j^l)] / 2   (Eq. 4)

k is a receiver (ST), j a donor (AT), and the similarity is between their *clean* statistics. The paper prints a further
1/|S| in Eq. 3; the weights already sum to one, so it is not applied. Everything is a product of matrices
receivers × donors, linear in the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from fedrbn.nets.dual_bn import BNNames
from fedrbn.types import Branch, Tensors


class Weighting(Enum):
    """How donors are weighted."""

    COSINE = "cosine"
    UNIFORM = "uniform"


@dataclass(frozen=True)
class Propagation:
    """The settings of Eq. 4."""

    weighting: Weighting = Weighting.COSINE
    temperature: float = 0.01

    def weights(
        self,
        personal: Mapping[str, Tensors],
        receivers: Sequence[str],
        donors: Sequence[str],
        batch_norms: Sequence[BNNames],
    ) -> Tensor:
        """α, one row per receiver and one column per donor; rows sum to 1."""
        if self.weighting is Weighting.UNIFORM:
            return torch.full((len(receivers), len(donors)), 1 / len(donors), dtype=torch.float64)
        return softmax(similarity(personal, receivers, donors, batch_norms), self.temperature)


def similarity(
    personal: Mapping[str, Tensors], receivers: Sequence[str], donors: Sequence[str], batch_norms: Sequence[BNNames]
) -> Tensor:
    """Layer-averaged similarity of clean statistics, receivers × donors.

    A receiver that never trained still has zero means, whose cosine is undefined: its row is the same for all donors,
    so that they weigh the same.
    """
    clean = [names for names in batch_norms if names.branch is Branch.CLEAN]
    total = torch.zeros(len(receivers), len(donors), dtype=torch.float64)
    untrained = torch.ones(len(receivers), dtype=torch.bool)
    for names in clean:
        for name in names.statistics:
            ours, theirs = _stacked(personal, receivers, name), _stacked(personal, donors, name)
            total += _unit_rows(ours) @ _unit_rows(theirs).T / 2
        untrained &= ~_stacked(personal, receivers, names.mean).any(dim=1)
    total[untrained] = 0
    return total / len(clean)


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """Softmax_T(q)_j = exp(q_j / T) / Σ_i exp(q_i / T), row by row."""
    return torch.softmax(scores / temperature, dim=1)


def propagate(
    personal: Mapping[str, Tensors],
    receivers: Sequence[str],
    donors: Sequence[str],
    batch_norms: Sequence[BNNames],
    propagation: Propagation,
) -> dict[str, Tensors]:
    """Eq. 3: for each receiver the estimated tensors of its noised branch, by name.

    With a separate affine that is kept local, the donors' w, b of BN_a are averaged with the same weights.
    """
    if not receivers or not donors:
        return {}
    alpha = propagation.weights(personal, receivers, donors, batch_norms)
    estimates: dict[str, Tensors] = {receiver: {} for receiver in receivers}
    for names in batch_norms:
        if names.branch is not Branch.NOISED:
            continue
        for name in (*names.statistics, *names.affine):
            if name not in personal[donors[0]]:
                continue  # averaged by the server with the other shared weights
            donated = _stacked(personal, donors, name)
            mixed = (alpha @ donated).to(personal[donors[0]][name].dtype)
            for row, receiver in enumerate(receivers):
                estimates[receiver][name] = mixed[row].clone()
    return estimates


def _stacked(personal: Mapping[str, Tensors], clients: Sequence[str], name: str) -> Tensor:
    return torch.stack([personal[client][name] for client in clients]).double()


def _unit_rows(rows: Tensor) -> Tensor:
    """Each row divided by its length; a zero row stays zero."""
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1)
