"""How many good answers a round needs to count."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fedrbn.config import FaultsConfig
from fedrbn.types import Member, Role


def shortage(faults: FaultsConfig, asked: Sequence[Member], answered: Collection[str]) -> str | None:
    """What the round lacks to count, given who was asked and whose answers are good; None if it counts.

    A share is wanted of each role: a round that has lost its AT users would not be what it says it is.
    """
    fewest = faults.min_clients
    groups = {f"{role.value} users": [member for member in asked if member.role is role] for role in Role}
    if isinstance(fewest, int):
        groups = {"clients": list(asked)}
    for name, group in groups.items():
        good = sum(member.id in answered for member in group)
        share = math.ceil(round(fewest * len(group), 9))  # 0.7 · 10 is a little more than 7
        needed = min(fewest, len(group)) if isinstance(fewest, int) else share
        if good < needed:
            return f"got good answers of {good} of {len(group)} {name}; expected at least {needed}"
    return None
