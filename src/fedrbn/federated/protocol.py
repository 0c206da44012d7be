"""What server and clients say to each other, and what the server remembers between rounds.

A round is one `Round` for all and one job for each client; a client answers a job with its result. `Execute` is the
only seam to where clients run: in this process, in worker processes, or on other machines.

The bounds beside the fields hold for what comes from other machines: messages are made from these classes and checked
against them (`fedrbn.flower.instructions`). A field is declared here and nowhere else.
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
"""Characters of a cause of failure that comes from another machine."""
MOST_SAMPLES = 2**40
ClientId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\z")]
"""A name that can be part of a file's name."""
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
        """The branch as it is deployed, a function of pixels: what decides whether a sample is right."""
        ...

    def surface(self, branch: Branch, example: Tensor) -> Callable[[Tensor], Tensor]:
        """The same function up to rounding, for an adversary to differentiate at inputs such as these."""
        ...


class Question(Protocol):
    """Something to find out about a client's network on its held-out samples.

    Its random numbers come from its text, `str(question)`, which must be the same in every process: a function's own
    text holds its address in memory.
    """

    @property
    def limit(self) -> int | None:
        """It looks at the first so many samples; None: at all of them."""
        ...

    def __call__(self, net: Network, samples: Samples, generator: Generator) -> dict[str, Tensor]:
        """For each named answer one boolean per sample, in the order of the samples."""
        ...


@dataclass(frozen=True)
class Round:
    """What all clients of a round have in common; it travels once per round, not once per client."""

    number: RoundNumber
    seed: Seed
    method: Method
    shared: Tensors
    lr: Annotated[float, Field(ge=0)]
    batch_size: Annotated[int, Field(ge=2)]
    local_epochs: Annotated[int, Field(ge=1)]
    steps: Annotated[int, Field(ge=1)] | None = None
    """Iterations every client runs instead of whole epochs, when data sizes differ; None means whole epochs."""
    freeze: Count = 0
    """So many of the network's first layers are left as they are (fine-tuning)."""
    deadline_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long a client may take to answer; whoever runs the clients answers for a later one with a Failure."""


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
        """The client's, which follows from its duty."""
        return self.duty.role


@dataclass(frozen=True)
class Evaluate:
    """Ask a client how many of its held-out samples it gets right, clean or attacked."""

    client: ClientId
    personal: Tensors
    part: Literal["validation", "test"]
    questions: tuple[Question, ...]
    limit: Count | None = None
    """Use only the first so many samples; None uses all."""


@dataclass(frozen=True)
class Upload:
    """A client's answer to Train: its new weights, its own batch norm, and how it went."""

    client: ClientId
    round: RoundNumber
    shared: Tensors
    personal: Tensors
    samples: SampleCount
    metrics: Annotated[dict[Label, float], Field(max_length=50)]


@dataclass(frozen=True)
class Answers:
    """A client's answer to Evaluate: for each question, which samples it got right, in the order of its data."""

    client: ClientId
    round: RoundNumber
    correct: dict[str, Tensor]


@dataclass(frozen=True)
class Failure:
    """A job that did not work out, and why: the client raised, hung or died, or what it sent cannot be used."""

    client: ClientId
    round: RoundNumber
    cause: Annotated[str, Field(max_length=MOST_CAUSE)]


Job: TypeAlias = Train | Evaluate

Result: TypeAlias = Upload | Answers | Failure

Execute: TypeAlias = Callable[[Round, Iterable[Job]], Iterator[Result]]
"""Has the clients do their jobs. Answers may come in any order. Those that are late, come twice, cannot be used or
never come are the server's concern: an executor raises only if it cannot run clients at all."""


@dataclass(frozen=True)
class ServerState:
    """All that the server remembers between rounds; together with the experiment it decides the rest of the run."""

    round: int
    """Rounds that are finished."""
    shared: Tensors
    personal: dict[str, Tensors]
    """Each client's batch norm. The server's copy is the authoritative one."""
    reported: dict[str, int] = field(default_factory=dict)
    """The last round each client reported in. Clients that never did do not donate statistics."""
    velocity: Tensors = field(default_factory=dict)
    """How far the shared weights went in the last round, for methods with momentum; empty for all others."""
    missed: dict[str, int] = field(default_factory=dict)
    """How often in a row a client was asked and gave no answer that counted; without those that have missed nothing."""
