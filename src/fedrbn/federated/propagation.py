"""Eqs. 3-4: estimate the missing BN_a of ST users from similar AT users.

    μ̂_a,k = Σ_j α_j μ_a,j     σ̂²_a,k = Σ_j α_j σ²_a,j                                              (Eq. 3)
    α_j = Softmax_T [ (1/L) Σ_l Sim^l(D_k, D_j) ],   Sim^l = [cos(μ_k^l, μ_j^l) + cos(σ²_k^l, σ²_j^l)] / 2   (Eq. 4)

k is a receiver (ST), j a donor (AT), and the similarity is between their *clean* statistics. The paper prints a further
1/|S| in Eq. 3; the weights already sum to one, so it is not applied. The α of a donor that has missed rounds is
multiplied by its `DonorFreshness.fading`, and the row is normalised again. Everything is a product of matrices
receivers × donors, for one block of receivers at a time, so extra memory does not grow with the receivers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from fedrbn.federated.donors import Guard
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Tensors

_BLOCK = 1024
"""Receivers at a time: memory beyond the statistics themselves does not grow with the number of clients."""


@dataclass(frozen=True)
class DonorFreshness:
    """Which clients have trained and are up to date; by default all of them."""

    untrained: frozenset[str] = frozenset()
    """Receivers that have not reported yet: their statistics carry no information, so all donors have equal weight."""
    fading: Mapping[str, float] = field(default_factory=dict)
    """The factor for the weight of each stale donor, above 0 and at most 1; donors not listed are fresh."""


class Weighting(Enum):
    """How donors are weighted."""

    COSINE = "cosine"
    UNIFORM = "uniform"


@dataclass(frozen=True)
class Propagation:
    """The settings of Eq. 4."""

    weighting: Weighting = Weighting.COSINE
    temperature: float = 0.01
    guard: Guard = field(default_factory=Guard)
    """Limits on the influence of a single donor; without them Eq. 3 is the paper's."""

    def weights(
        self,
        personal: Mapping[str, Tensors],
        receivers: Sequence[str],
        donors: Sequence[str],
        batch_norms: Sequence[BNNames],
        freshness: DonorFreshness = DonorFreshness(),  # noqa: B008  (it cannot be changed)
    ) -> Tensor:
        """α within the limits of `guard`, one row per receiver and one column per donor; rows sum to 1."""
        if self.weighting is Weighting.UNIFORM:
            alpha = torch.full((len(receivers), len(donors)), 1 / len(donors), dtype=torch.float64)
        else:
            scores = similarity(personal, receivers, donors, batch_norms, freshness.untrained)
            alpha = softmax(scores, self.temperature)
        alpha = _faded(alpha, [freshness.fading.get(donor, 1.0) for donor in donors])
        return self.guard.weights(alpha, personal, receivers, donors, batch_norms)


def similarity(
    personal: Mapping[str, Tensors],
    receivers: Sequence[str],
    donors: Sequence[str],
    batch_norms: Sequence[BNNames],
    untrained: Collection[str] = (),
) -> Tensor:
    """Layer-averaged similarity of clean statistics, receivers × donors.

    The row of a receiver that never trained is the same for all donors, so that they have equal weight.
    """
    clean = [names for names in batch_norms if names.branch is Branch.CLEAN]
    total = torch.zeros(len(receivers), len(donors), dtype=torch.float64)
    for names in clean:
        for name in names.statistics:
            ours, theirs = _stacked(personal, receivers, name), _stacked(personal, donors, name)
            total += _unit_rows(ours) @ _unit_rows(theirs).T / 2
    total[torch.tensor([receiver in untrained for receiver in receivers], dtype=torch.bool)] = 0
    return total / len(clean)


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """Softmax_T(q)_j = exp(q_j / T) / Σ_i exp(q_i / T), row by row."""
    return torch.softmax(scores / temperature, dim=1)


def _faded(alpha: Tensor, factors: Sequence[float]) -> Tensor:
    """Each donor's weight times its factor, rows normalised to sum to 1; unchanged if all donors are fresh."""
    if all(factor == 1.0 for factor in factors):
        return alpha
    faded = alpha * torch.tensor(factors, dtype=alpha.dtype)
    return faded / faded.sum(dim=1, keepdim=True)


def propagate(
    personal: Mapping[str, Tensors],
    receivers: Sequence[str],
    donors: Sequence[str],
    batch_norms: Sequence[BNNames],
    propagation: Propagation,
    freshness: DonorFreshness = DonorFreshness(),  # noqa: B008  (it cannot be changed)
) -> dict[str, Tensors]:
    """Eq. 3: for each receiver the estimated tensors of its BN_a, by name.

    With a separate affine that is kept local, the donors' w, b of BN_a are averaged with the same weights.
    """
    estimates: dict[str, Tensors] = {}
    for start in range(0, len(receivers) if donors else 0, _BLOCK):
        some = receivers[start : start + _BLOCK]
        estimates |= _estimated(personal, some, donors, batch_norms, propagation, freshness)
    return estimates


def _estimated(
    personal: Mapping[str, Tensors],
    receivers: Sequence[str],
    donors: Sequence[str],
    batch_norms: Sequence[BNNames],
    propagation: Propagation,
    freshness: DonorFreshness,
) -> dict[str, Tensors]:
    alpha = propagation.weights(personal, receivers, donors, batch_norms, freshness)
    estimates: dict[str, Tensors] = {receiver: {} for receiver in receivers}
    for names in batch_norms:
        if names.branch is not Branch.NOISED:
            continue
        for name in (*names.statistics, *names.affine):
            if name not in personal[donors[0]]:
                continue  # the server averages it with the other shared weights
            donated = _stacked(personal, donors, name)
            mixed = propagation.guard.combined(alpha, donated).to(personal[donors[0]][name].dtype)
            for row, receiver in enumerate(receivers):
                estimates[receiver][name] = mixed[row].clone()
    return estimates


def _stacked(personal: Mapping[str, Tensors], clients: Sequence[str], name: str) -> Tensor:
    return torch.stack([personal[client][name] for client in clients]).double()


def _unit_rows(rows: Tensor) -> Tensor:
    """Each row divided by its length; a zero row stays zero."""
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1)
