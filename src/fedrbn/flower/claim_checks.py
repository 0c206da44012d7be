"""Checks what clients claim: their number of samples, and that they do adversarial training.

**Samples.** A client's number of samples is its weight in the mean, and the mean number over clients decides how many
steps all clients take. The server cannot count them, so a claim counts for at most twice the median claim.

**AT.** BN_a of adversarial inputs differs from BN_c of clean ones. The paper names unaware or misreported hardware as a
limitation: a client that claims AT but does standard training would donate a BN_a without robustness. Its two branches
are then closer together than those of the other AT users,

    d_j = mean over layers of ‖(μ_a − μ_c) / σ_c‖ and ‖ln σ²_a − ln σ²_c‖, as root mean square over channels,

or its BN_a has never changed. A client is flagged, not removed: the operator decides whom to bar (`control.toml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from torch import Tensor

from fedrbn.federated.aggregation.robust import bounded
from fedrbn.federated.donors import BN_EPSILON
from fedrbn.nets.state import BNNames
from fedrbn.types import Branch, Member, Tensors


def capped_samples(members: Sequence[Member]) -> tuple[Member, ...]:
    """The members with the samples that they count for: at most twice the median, as in the robust rules.

    With two members nothing is limited, because it is unknown which of them is right.
    """
    counts = bounded([member.samples for member in members])
    return tuple(replace(member, samples=int(count)) for member, count in zip(members, counts, strict=True))


SUSPICIOUS = 0.25
"""A donor is flagged if its branches are closer together than this fraction of the other donors' median distance."""


def branch_distance(personal: Tensors, batch_norms: Sequence[BNNames]) -> float:
    """The distance of BN_a from BN_c, in standard deviations of the channels; 0 if they are the same."""
    pairs = zip(
        [names for names in batch_norms if names.branch is Branch.CLEAN],
        [names for names in batch_norms if names.branch is Branch.NOISED],
        strict=True,
    )
    return fmean(part for clean, noised in pairs for part in _apart(personal, clean, noised))


def _apart(personal: Tensors, clean: BNNames, noised: BNNames) -> tuple[float, float]:
    variance, other = (personal[name].double() + BN_EPSILON for name in (clean.variance, noised.variance))
    means = (personal[noised.mean].double() - personal[clean.mean].double()) / variance.sqrt()
    return _size(means), _size(other.log() - variance.log())


def _size(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def suspicions(
    personal: Mapping[str, Tensors], donors: Sequence[str], batch_norms: Sequence[BNNames]
) -> dict[str, str]:
    """Donors whose statistics look like standard training, and why."""
    found: dict[str, str] = {}
    if not donors or not all(_has_branches(personal[donor], batch_norms) for donor in donors):
        return found
    distances = {donor: branch_distance(personal[donor], batch_norms) for donor in donors}
    for donor, distance in distances.items():
        counts = [personal[donor][names.count] for names in batch_norms if names.branch is Branch.NOISED]
        others = [distances[other] for other in donors if other != donor]
        if not any(bool(count.any()) for count in counts):
            found[donor] = "claims AT, but its BN_a has never seen a batch"
        elif others and distance < SUSPICIOUS * median(others):
            found[donor] = (
                f"claims AT, but its BN_a is {distance:.3g} from its BN_c, where the other AT clients' are "
                f"{median(others):.3g} (median): as after standard training"
            )
    return found


def _has_branches(personal: Tensors, batch_norms: Sequence[BNNames]) -> bool:
    """Whether both branches are the client's own and can therefore be compared."""
    noised = [names for names in batch_norms if names.branch is Branch.NOISED]
    return bool(noised) and all(name in personal for names in batch_norms for name in names.statistics)
