"""The messages between server and clients, and the state that the server keeps between rounds.

A round is one `Round` for all clients and one job for each; a client answers a job with its result. `Execute` is the
only interface to where clients run: in this process, in worker processes, or on other machines.

The bounds in the field types apply to messages from other machines, which are built from these classes and checked
against them (`fedrbn.flower.instructions`). Each field is declared only here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from pydantic import Field

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor

    from fedrbn.data.samples import Samples
    from fedrbn.federated.methods import Method
from fedrbn.types import Branch, Duty, Role, Tensors

MOST_CAUSE = 2000
"""Maximum characters of a failure's cause that comes from another machine."""
MOST_SAMPLES = 2**40
ClientId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\z")]
"""A name that can be part of a file name."""
Label = Annotated[str, Field(max_length=200)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
RoundNumber = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0)]
SampleCount = Annotated[int, Field(ge=1, lt=MOST_SAMPLES)]


class Network(Protocol):
    """A client's network as a question sees it: with frozen statistics, in float32. A `DualNet` is one."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that differ."""
        ...

    def logits(self, branch: Branch) -> Callable[[Tensor], Tensor]:
        """The branch as deployed, a function of pixels: it decides whether a sample is classified correctly."""
        ...

    def surface(self, branch: Branch, example: Tensor) -> Callable[[Tensor], Tensor]:
        """The same function up to rounding, for an attack to differentiate at inputs like this one."""
        ...


class Question(Protocol):
    """A question about a client's network on its held-out samples.

    Its random numbers are derived from its text, `str(question)`, which must be the same in every process. The text of
    a plain function contains a memory address, so it cannot be used.
    """

    @property
    def limit(self) -> int | None:
        """The number of first samples to use; None uses all."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its answers."""
        ...

    def __call__(self, net: Network, samples: Samples, generator: Generator) -> dict[str, Tensor]:
        """For each named answer, one boolean per sample, in the order of the samples."""
        ...


@dataclass(frozen=True)
class Round:
    """What all clients of a round have in common; it is sent once per round, not once per client."""

    number: RoundNumber
    seed: Seed
    method: Method
    shared: Tensors
    lr: Annotated[float, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=2)]
    local_epochs: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)] | None = None
    """Iterations that every client runs instead of whole epochs, if data sizes differ; None means whole epochs."""
    freeze: Count = 0
    """The number of first layers that are not trained (fine-tuning)."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long a client may take to answer; after that the executor returns a Failure for it."""


@dataclass(frozen=True)
class Train:
    """Ask a client for one local update."""

    client: ClientId
    duty: Duty
    personal: Tensors
    calibrate: bool
    """Whether an ST client has an estimated BN_a to calibrate with (Eq. 5)."""

    @property
    def role(self) -> Role:
        """The client's role, which follows from its duty."""
        return self.duty.role


@dataclass(frozen=True)
class Evaluate:
    """Ask a client which of its held-out samples it classifies correctly, clean or attacked."""

    client: ClientId
    personal: Tensors
    part: Literal["validation", "test"]
    questions: tuple[Question, ...]
    limit: Count | None = None
    """Use only this many first samples; None uses all."""


@dataclass(frozen=True)
class Upload:
    """A client's answer to Train: its new weights, its own batch norm, and metrics."""

    client: ClientId
    round: RoundNumber
    shared: Tensors
    personal: Tensors
    samples: SampleCount
    metrics: Annotated[dict[Label, float], Field(max_length=50)]


@dataclass(frozen=True)
class Answers:
    """A client's answer to Evaluate: for each question, which samples are correct, in the order of its data."""

    client: ClientId
    round: RoundNumber
    correct: dict[str, Tensor]


@dataclass(frozen=True)
class Failure:
    """A failed job and its cause: the client raised, hung or died, or its answer cannot be used."""

    client: ClientId
    round: RoundNumber
    cause: Annotated[str, Field(max_length=MOST_CAUSE)]


Job: TypeAlias = Train | Evaluate

Result: TypeAlias = Upload | Answers | Failure

Execute: TypeAlias = Callable[[Round, Iterable[Job]], Iterator[Result]]
"""Runs the clients' jobs. Answers may arrive in any order. The server handles answers that are late, repeated, unusable
or missing: an executor raises only if it cannot run clients at all."""


@dataclass(frozen=True)
class ServerState:
    """Everything that the server keeps between rounds; with the experiment it determines the rest of the run."""

    round: int
    """The number of finished rounds."""
    shared: Tensors
    personal: dict[str, Tensors]
    """Each client's batch norm. The server's copy is authoritative."""
    reported: dict[str, int] = field(default_factory=dict)
    """The last round each client reported in. Clients that never did do not donate statistics."""
    velocity: Tensors = field(default_factory=dict)
    """The change of the shared weights in the last round, for methods with momentum; empty for all others."""
    missed: dict[str, int] = field(default_factory=dict)
    """How many times in a row each client was asked without a valid answer; clients with 0 are not listed."""
