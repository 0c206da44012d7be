"""Flower's run config and node config as our settings.

The run config contains settings of the experiment as `section.key` (an empty text leaves one unset) and those of
`FlowerConfig` as `flower.key`. Flower sends it to every node. The `[attack]` section, which ST nodes do not need, is in
the server's own file, named by `flower.config`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, ValidationError

from fedrbn import config
from fedrbn.config import AttackConfig, Experiment, plugins
from fedrbn.config.schema import PrivacyConfig
from fedrbn.config.section import Section
from fedrbn.data import AVAILABLE
from fedrbn.errors import ConfigError
from fedrbn.federated.options import resolved
from fedrbn.federated.protocol import ClientId
from fedrbn.fleet.description import Quantity
from fedrbn.flower.instructions import Setup, Transport
from fedrbn.types import Role

Values: TypeAlias = Mapping[str, bool | int | float | str]
"""Flower's run config or node config."""


class FlowerConfig(Section):
    """How the server works with nodes; `flower.key` in the run config."""

    config: str = ""
    """A TOML file of settings on the server's machine; the run config overrides it."""
    nodes: int = Field(default=2, ge=1)
    """Training starts when this many nodes have introduced themselves."""
    wait: float = Field(default=300.0, ge=0)
    """Maximum seconds to wait for them."""
    deadline: float = Field(default=600.0, gt=0)
    """Seconds that nodes have for a job."""
    introduction: float = Field(default=120.0, gt=0)
    """Seconds that a node has to introduce itself."""
    poll: float = Field(default=0.2, gt=0)
    """Seconds between two polls for answers."""
    roles: Literal["config", "budget"] = "config"
    """Who assigns duties: federation.at or federation.duties, or what nodes say they can afford."""
    transport: Transport = "float32"
    """The data type of the shared weights in messages."""
    bind_keys: bool = True
    """Whether a client belongs to the node key of its first registration; see `fedrbn.flower.registry`."""
    classes: str = ""
    """The class names, separated by commas, that every node must have; empty uses those of most nodes."""


def experiment_of(run_config: Values) -> tuple[Experiment, FlowerConfig]:
    """The resolved experiment and the server's settings from a run config."""
    own: dict[str, Any] = {}
    settings: list[tuple[str, str, Any]] = []
    for name, value in run_config.items():
        if value == "":
            continue
        section, _, key = name.partition(".")
        if section == "flower":
            own[key] = value
        else:
            settings.append(_setting(name, value))
    flower = _validated(own)
    values = config.read(Path(flower.config)) if flower.config else {}
    return resolved(config.make(config.with_settings(values, settings))), flower


def _setting(name: str, value: bool | int | float | str) -> tuple[str, str, Any]:
    if not isinstance(value, str):
        section, key, _ = config.parse_setting(f"{name}=0")
        return section, key, value
    section, key, values = config.parse_setting(f"{name}={value}")
    if len(values) > 1:
        raise ConfigError(f'got several values for {name}: {value!r}; expected one. Write a list as ["a", "b"].')
    return section, key, values[0]


def _validated(own: dict[str, Any]) -> FlowerConfig:
    try:
        return FlowerConfig.model_validate(own)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        nearest = difflib.get_close_matches(key, FlowerConfig.model_fields, n=1, cutoff=0.4)
        known = nearest and nearest[0] != key
        remedy = f"did you mean flower.{nearest[0]}?" if known else "see docs/flower-settings.md."
        raise ConfigError(
            f"got flower.{key} = {first['input']!r} in the run config; expected another value: {first['msg']}; {remedy}"
        ) from None


class NodeConfig(Section):
    """What a site says about itself in Flower's node config; further keys, for its data factory, are ignored here."""

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=lambda name: name.replace("_", "-"), allow_inf_nan=False
    )

    partition_id: int | None = Field(default=None, ge=0)
    """Use this user's part of the data set that the server names."""
    data: str | None = None
    """The site's own data instead: package.module:factory, see `fedrbn.flower.site`."""
    name: ClientId | None = None
    """The client's id, for own data."""
    state: str | None = None
    """Directory for what the client keeps between rounds."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    role: Role | None = None
    """The role that the site says it can afford."""
    macs_per_second: float | None = Field(default=None, gt=0)
    memory: Quantity | None = None
    bandwidth: Quantity | None = None
    probe: float | None = Field(default=None, gt=0, le=600)
    """Measure the speed for this many seconds instead of stating a role."""
    max_passes: int = Field(default=20, ge=1)
    """Maximum passes over the site's own data per local epoch, even if the server orders more steps."""
    require_noise: float | None = Field(default=None, gt=0)
    """Minimum noise multiplier of everything that leaves this site; it does not take part in a run with less noise, or
    with noise that others can subtract."""
    allow: str = ""
    """package.module:object references, separated by commas, that the server may name. Nothing else is imported."""

    @classmethod
    def read(cls, values: Values) -> NodeConfig:
        """The settings of a node config."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(
                f"got {first['loc'][0]} = {first['input']!r} in the node config; expected another value: "
                f"{first['msg']}. Correct --node-config of this SuperNode."
            ) from None

    def _ensure_noise(self, offered: PrivacyConfig) -> None:
        """Raise an error for a run whose uploads would have less noise than this site requires."""
        if self.require_noise is None:
            return
        at_client = None if offered.update_at == "server" else offered.update_noise
        for key, noise in (("statistics_noise", offered.statistics_noise), ("update_noise", at_client)):
            if noise is None or noise < self.require_noise:
                got = "none at the client" if noise is None else f"{noise:g}"
                raise ConfigError(
                    f"got privacy.{key}: {got} from the server; expected at least require-noise = "
                    f"{self.require_noise:g}, which this site requires. Ask the operator of the server for more, or "
                    "lower it in node.toml."
                )
        if not offered.secret:
            raise ConfigError(
                "got noise from the run's seed from the server; expected privacy.secret = true, because this site has "
                "set require-noise and whoever knows the seed can subtract the noise. Ask the operator of the server."
            )

    def state_folder(self) -> Path:
        """The folder of the client's memory: as configured, $FEDRBN_STATE, or the user's state folder."""
        if self.state is not None:
            return Path(self.state).expanduser()
        if own := os.environ.get("FEDRBN_STATE"):
            return Path(own)
        base = os.environ.get("XDG_STATE_HOME")
        return (Path(base) if base else Path("~/.local/state").expanduser()) / "fedrbn"

    def check(self, setup: Setup, attacks: Iterable[AttackConfig] = ()) -> None:
        """Raise an error if the server names code that this site has not allowed; `attacks` are those it asks about."""
        self._ensure_noise(setup.privacy)
        allowed = {part.strip() for part in self.allow.split(",")}
        named = [("model", setup.model.name), ("method", setup.method.name)]
        named += [("attack", attack.name) for attack in (setup.attack, *attacks) if attack is not None]
        wanted = [(kind, name) for kind, name in named if plugins.is_reference(name)]
        if self.data is None and setup.data.name not in AVAILABLE:
            wanted.append(("data", setup.data.name))
        for kind, name in wanted:
            if name not in allowed:
                raise ConfigError(
                    f"got {kind} {name!r} from the server; expected a built-in one, because this site has not allowed "
                    f"it. Add allow='{name}' to --node-config of this SuperNode if you trust it."
                )
