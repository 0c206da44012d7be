"""A watcher that logs for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedrbn.errors import TrackingError
from fedrbn.evaluation.records import RoundRecord
from fedrbn.federated.assemble import Assembly
from fedrbn.federated.protocol import Result
from fedrbn.files import Folder
from fedrbn.types import Role

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """A `Watcher` that writes every round's numbers to an event file. Use it as a context manager.

    Rounds that are repeated after an interruption replace the earlier log entries.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import torch.utils.tensorboard as _  # noqa: F401, PLC0415  (an extra, and slow to import)
        except ImportError as error:
            raise TrackingError(
                f"got --track tensorboard, but tensorboard cannot be imported ({error}); expected it to be installed. "
                "Install it: pip install 'fedrbn[track]'"
            ) from None
        self.folder = folder
        self.writer: SummaryWriter | None = None
        self.roles: dict[str, Role] = {}

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def training(self, assembly: Assembly, finished: int) -> None:
        """Open the event file; the run directory does not exist before."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

        self.roles = {member.id: member.role for member in assembly.plan.members}
        Folder(self.folder.parent).names(self.folder.name)  # refuses a link to a folder elsewhere
        self.writer = SummaryWriter(str(self.folder), purge_step=finished + 1)

    def answered(self, result: Result) -> None:
        """Do nothing: a round's numbers are written when it is finished."""

    def round_finished(self, record: RoundRecord) -> None:
        """Write the numbers of a round."""
        if self.writer is not None:
            for name, value in scalars(record, self.roles).items():
                self.writer.add_scalar(name, value, record.round)
            self.writer.flush()

    def evaluating(self, clients: int) -> None:
        """Do nothing: the evaluation is in the run's record."""


def scalars(record: RoundRecord, roles: dict[str, Role]) -> dict[str, float]:
    """The numbers of a round, by the names under which TensorBoard groups them."""
    names = {"score": "score", "ra_at": "RA of AT users", "sa_st": "SA of ST users"}
    found: dict[str, float | None] = {"train/lr": record.lr, "train/seconds": record.seconds}
    for role in Role:
        found[f"loss/{role.value} users"] = record.mean_loss(client for client, own in roles.items() if own is role)
    found["clients/failed"] = float(len(record.failures))
    found |= {f"validation/{name}": record.validated(part) for part, name in names.items()}
    return {name: value for name, value in found.items() if value is not None}
