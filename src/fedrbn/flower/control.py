"""What whoever runs the server may change while it runs: `control.toml` in the run directory.

It is read before each round and before the evaluation.

bar = ["pen-0"]              # takes no part at all, and its statistics are not used
drop_donors = ["plain-0"]    # takes part, but nobody receives its BN_a
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from fedrbn.config.section import Section
from fedrbn.federated.protocol import ClientId
from fedrbn.flower.log import EventLog


class Control(Section):
    """The content of the file."""

    bar: tuple[ClientId, ...] = ()
    """Clients that take no part."""
    drop_donors: tuple[ClientId, ...] = ()
    """AT clients whose statistics nobody receives."""


def read_control(path: Path, before: Control, log: EventLog) -> Control:
    """What the file says now. A file that cannot be used is reported, and what was said before stays in force."""
    if not path.exists():
        return Control()
    try:
        now = Control.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        log(
            "control refused",
            reason=f"got {path.name} that cannot be used ({error}); expected bar and drop_donors, lists of client ids. "
            "Correct it; what it said before stays in force.",
        )
        return before
    if now != before:
        log("control", bar=now.bar, drop_donors=now.drop_donors)
    return now
