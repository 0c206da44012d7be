"""The `[federation]` section: who takes part, with which data, and which duty each client has."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedrbn.config.section import Rate, Section, Share
from fedrbn.types import Duty


class Dirichlet(Section):
    """A Dirichlet draw with this concentration: small values give very unequal shares."""

    concentration: float = Field(gt=0)


class Partition(Section):
    """How a domain's images are spread over its users."""

    sizes: Literal["uniform"] | Dirichlet = "uniform"
    """How many each user gets: the same number, or Dirichlet shares."""
    labels: Literal["uniform"] | Dirichlet = "uniform"
    """Which classes each user gets: the domain's own mix, or a Dirichlet label skew."""


class FirstDomains(Section):
    """A ratio of the users in some of the domains: the first n in the data set's order, or those named."""

    ratio: Share
    domains: int | tuple[str, ...]


Speeds = tuple[Rate, Rate, Rate]
"""Multiply-accumulates per second of forward passes, backward passes and steps of an attack."""


class DutyConfig(Section):
    """What a client does, and what its device can do, which is needed to plan again."""

    at_share: float = Field(default=0.0, ge=0, le=1)
    """The probability that a batch is adversarial."""
    lam: float | None = Field(default=None, ge=0, le=1)
    """λ of a client without adversarial batches: 0 is plain standard training, None the method's."""
    speed: Speeds | None = None
    memory: Rate | None = None
    """Bytes free for training."""
    bandwidth: Rate | None = None
    """Bytes per second to and from the server."""

    @model_validator(mode="after")
    def _is_a_duty(self) -> Self:
        Duty(self.at_share, self.lam)
        return self

    @property
    def duty(self) -> Duty:
        """The duty alone."""
        return Duty(self.at_share, self.lam)


class DutiesConfig(Section):
    """A plan: a duty for every client. `fedrbn plan -o` writes one."""

    deadline: float | None = Field(default=None, gt=0)
    """The deadline that the plan was made for, in seconds per round."""
    clients: dict[str, DutyConfig] = Field(min_length=1)


AtUsers = Annotated[float, Field(ge=0, le=1)] | tuple[str, ...] | FirstDomains


class FederationConfig(Section):
    """Who takes part: users per domain, their data, and which of them can afford adversarial training."""

    users_per_domain: int = Field(default=10, ge=1)
    """Users that share each domain's images."""
    fraction: Share = 0.3
    """Part of each domain's training images that is used."""
    validation: float = Field(default=0.5, ge=0, lt=1)
    """Part of each user's training images that is held out for model selection."""
    partition: Partition = Partition()
    """How images are spread over users: uniform, dirichlet (sizes), label-skew, or a table with concentrations."""
    min_samples: int = Field(default=4, ge=2)
    """Minimum number of training images per user (batch norm needs at least two)."""
    test_samples: int | None = Field(default=None, ge=1)
    """Maximum number of test images per user; all if not set. The test set of a domain is split among its users."""
    participants: Annotated[int, Field(ge=1)] | Share | None = None
    """Users per round: a number, or a share of all; all users if not set."""
    at: AtUsers = 0.2
    """AT users: a ratio per domain, names of domains or users, or {ratio, domains} for the first or named domains."""
    duties: DutiesConfig | None = None
    """A duty for every client instead of `at`: a file written by fedrbn plan -o; the run keeps its content."""
    replan: int | None = Field(default=None, ge=1)
    """Number of rounds after which duties are planned again from measured times, repeatedly; never if not set."""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, values: Any) -> Any:
        """`at = "mnist"` means the list of one name; `partition = "dirichlet"` means Dirichlet sizes."""
        if isinstance(values, dict):
            values = dict(values)
            if values.get("replan") is not None and values.get("duties") is None:
                raise ValueError("got replan without duties; expected an initial plan. Set federation.duties")
            if isinstance(values.get("at"), str):
                values["at"] = (values["at"],)
            if isinstance(values.get("partition"), str):
                values["partition"] = _named_partition(values["partition"])
        return values


def _named_partition(name: str) -> dict[str, Any]:
    named: dict[str, dict[str, Any]] = {
        "uniform": {},
        "dirichlet": {"sizes": {"concentration": 1.0}},
        "label-skew": {"labels": {"concentration": 0.5}},
    }
    if name not in named:
        raise ValueError(
            f"got partition {name!r}; expected {', '.join(named)}, or a table such as "
            "{ sizes = { concentration = 1.0 } } or { labels = { concentration = 0.5 } }"
        )
    return named[name]
