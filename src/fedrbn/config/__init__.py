"""The settings of an experiment: their schema, reading and writing them, and errors that say what to do."""

from fedrbn.config.experiment import (
    DATA_DEFAULTS,
    Experiment,
    from_toml,
    from_values,
    make,
    parse_setting,
    read,
    reference,
    with_settings,
)
from fedrbn.config.federation import (
    AtUsers,
    Dirichlet,
    DutiesConfig,
    DutyConfig,
    FederationConfig,
    FirstDomains,
    Partition,
)
from fedrbn.config.schema import (
    AttackConfig,
    DataConfig,
    FaultsConfig,
    MaliceConfig,
    MethodConfig,
    ModelConfig,
    PrivacyConfig,
    RunConfig,
    TrainConfig,
)
from fedrbn.errors import ConfigError

__all__ = [
    "DATA_DEFAULTS",
    "AtUsers",
    "AttackConfig",
    "ConfigError",
    "DataConfig",
    "Dirichlet",
    "DutiesConfig",
    "DutyConfig",
    "Experiment",
    "FaultsConfig",
    "FederationConfig",
    "FirstDomains",
    "MaliceConfig",
    "MethodConfig",
    "ModelConfig",
    "Partition",
    "PrivacyConfig",
    "RunConfig",
    "TrainConfig",
    "from_toml",
    "from_values",
    "make",
    "parse_setting",
    "read",
    "reference",
    "with_settings",
]
