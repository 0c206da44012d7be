"""How many valid answers a round needs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fedrbn.config import FaultsConfig
from fedrbn.types import Member, Role


def shortage(faults: FaultsConfig, asked: Sequence[Member], answered: Collection[str]) -> str | None:
    """What the round lacks, given who was asked and whose answers are valid; None if there are enough.

    A share is required of each role: a round that has lost its AT users would no longer train as configured.
    """
    fewest = faults.min_clients
    groups = {f"{role.value} users": [member for member in asked if member.role is role] for role in Role}
    if isinstance(fewest, int):
        groups = {"clients": list(asked)}
    for name, group in groups.items():
        good = sum(member.id in answered for member in group)
        share = math.ceil(round(fewest * len(group), 9))  # 0.7 · 10 is slightly above 7 in floating point
        needed = min(fewest, len(group)) if isinstance(fewest, int) else share
        if good < needed:
            return f"got valid answers from {good} of {len(group)} {name}; expected at least {needed}"
    return None
