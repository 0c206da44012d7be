"""What the operator of the server can change during a run: `control.toml` in the run directory.

It is read before each round and before the evaluation.

bar = ["pen-0"]              # does not take part, and its statistics are not used
drop_donors = ["plain-0"]    # takes part, but does not donate its BN_a
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
    """Clients that do not take part."""
    drop_donors: tuple[ClientId, ...] = ()
    """AT clients whose statistics are not donated."""


def read_control(path: Path, before: Control, log: EventLog) -> Control:
    """The current content of the file. An invalid file is reported, and the previous content remains in effect."""
    if not path.exists():
        return Control()
    try:
        now = Control.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        log(
            "control refused",
            reason=f"got {path.name} that cannot be used ({error}); expected bar and drop_donors, lists of client ids. "
            "Correct it; its previous content remains in effect.",
        )
        return before
    if now != before:
        log("control", bar=now.bar, drop_donors=now.drop_donors)
    return now
