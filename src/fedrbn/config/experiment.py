"""An experiment as one frozen value: validated when it is made, read from TOML, written back to TOML."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedrbn.builtin import OWN
from fedrbn.builtin.data_sets import AVAILABLE, FOLDER, OWN_DATA, folder_named
from fedrbn.builtin.shipped import SHIPPED
from fedrbn.config.federation import FederationConfig
from fedrbn.config.plugins import is_reference
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
from fedrbn.config.section import Section, is_pixels
from fedrbn.config.text import parse_toml, require_known, toml_value
from fedrbn.config.wording import choices, explained
from fedrbn.errors import ConfigError
from fedrbn.files import MOST_NAMED, read_named


class Experiment(Section):
    """All settings of a run, resolved and validated; `make` creates it."""

    data: DataConfig = DataConfig()
    federation: FederationConfig = FederationConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    attack: AttackConfig = AttackConfig()
    method: MethodConfig = MethodConfig()
    faults: FaultsConfig = FaultsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    malice: MaliceConfig = MaliceConfig()
    run: RunConfig = RunConfig()

    def key(self) -> str:
        """Twelve hex digits that identify this experiment's results: equal keys, equal results."""
        return hashlib.sha256(json.dumps(self.deciding(), sort_keys=True).encode()).hexdigest()[:12]

    def deciding(self) -> dict[str, dict[str, Any]]:
        """The settings that decide the results; `from_values` makes an experiment with the same key from them."""
        # Unset settings do not count, so that adding a setting does not change the keys of older runs.
        content = self.model_dump(mode="json", exclude={"run": {"workers", "out"}}, exclude_none=True)
        content |= {"faults": self.faults.model_dump(mode="json", exclude_defaults=True)}
        return {section: values for section, values in content.items() if values}

    def differences(self, other: Experiment) -> list[tuple[str, Any, Any]]:
        """Deciding settings that differ from the other's: (section.key, own value, other value), None if not set."""
        ours, theirs = self.deciding(), other.deciding()
        names = [
            (section, key)
            for section in type(self).model_fields
            for key in sorted({*ours.get(section, {}), *theirs.get(section, {})})
        ]
        pairs = [(f"{s}.{k}", ours.get(s, {}).get(k), theirs.get(s, {}).get(k)) for s, k in names]
        # As text: for faults.min_clients, 1 is one client and 1.0 is all of them.
        return [(name, here, there) for name, here, there in pairs if json.dumps(here) != json.dumps(there)]

    def run_name(self) -> str:
        """The default name of its run directory: method, λ if it has one, seed and key."""
        lam = "" if self.method.lam is None else f"-lam{self.method.lam:g}"
        return f"{self.method.name.replace(':', '.')}{lam}-seed{self.run.seed}-{self.key()}"

    def former_run_name(self) -> str:
        """The name that earlier versions gave it; such runs are still found."""
        return f"{self.method.name.replace(':', '.')}-{self.key()}"

    def to_toml(self) -> str:
        """The resolved experiment as TOML that `from_toml` reads back to an equal value."""
        import tomli_w  # noqa: PLC0415  (only writers need it)

        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))


DATA_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    **{name: description.defaults for name, description in AVAILABLE.items() if description.defaults},
    "a folder": FOLDER,
    OWN: OWN_DATA,
}
"""Defaults of a data set or a kind of data that differ from the paper's Digits settings."""


def make(values: Mapping[str, Any]) -> Experiment:
    """An experiment from nested settings. A setting that is missing gets the data set's default, else the paper's."""
    values = _with_duties(values)
    defaults = _data_defaults(_given_name(values, "data", DataConfig().name))
    network = defaults.get("model", {}).get("name", "")
    unfit = {
        "method": _given_name(values, "method", MethodConfig().name) != MethodConfig().name,
        "model": network and _given_name(values, "model", network) != network,  # a default width belongs to its network
    }
    return from_values(_merged({section: own for section, own in defaults.items() if not unfit.get(section)}, values))


def _data_defaults(name: str) -> Mapping[str, Mapping[str, Any]]:
    """The defaults for data with this name."""
    if name in AVAILABLE:
        return AVAILABLE[name].defaults
    if folder_named(name) is not None:
        return FOLDER
    return OWN_DATA if is_reference(name) else {}


def _with_duties(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings with the content of the file in `federation.duties`: the file may change later, the run must not."""
    own = values.get("federation")
    if not isinstance(own, Mapping) or not isinstance(own.get("duties"), str):
        return values
    return {**values, "federation": {**own, "duties": read(Path(own["duties"]))}}


def _given_name(values: Mapping[str, Any], section: str, default: str) -> str:
    """The `name` in a section that is not validated yet; validation refuses it later if it is not text."""
    given = values.get(section, {})
    name = given.get("name", default) if isinstance(given, Mapping) else ""
    return name if isinstance(name, str) else ""


def from_toml(text: str) -> Experiment:
    """The experiment that `Experiment.to_toml` wrote; a data set's defaults are not applied."""
    return from_values(parse_toml(text))


def from_values(values: Mapping[str, Any]) -> Experiment:
    """The experiment that `Experiment.deciding` described; a data set's defaults are not applied."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explained(error.errors(), Experiment)) from None


def read(path: Path | str) -> dict[str, Any]:
    """Read the settings of a TOML file, or of a shipped file by its name. `make` and `compare` validate them."""
    path = SHIPPED[str(path)] if str(path) in SHIPPED and not Path(path).exists() else Path(path)
    try:
        return parse_toml(read_named(path, MOST_NAMED).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"got config file {path}, which cannot be read ({error}); expected a TOML file or one of "
            f"the names {', '.join(SHIPPED)}."
        ) from None


def parse_setting(text: str) -> tuple[str, str, list[Any]]:
    """`section.key=value` as (section, key, values); a bare comma list such as 0,0.5,1 gives several values."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise ConfigError(f"got setting {text!r}; expected section.key=value, for example method.lam=0.5")
    require_known(section, Experiment.model_fields, "section")
    whole = toml_value(value)
    if not isinstance(whole, str) or "," not in value or value.strip().startswith(('"', "'")):
        return section, key, [whole]
    return section, key, [toml_value(part) for part in value.split(",")]


def with_settings(values: Mapping[str, Any], settings: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """`values` with (section, key, value) settings on top."""
    merged = dict(values)
    for section, key, value in settings:
        merged = _merged(merged, {section: {key: value}})
    return merged


def _merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two layers of settings, merged section by section; `above` wins. A section that is not a table stays as it is."""
    result: dict[str, Any] = dict(base)
    for section, values in above.items():
        own = result.get(section, {})
        if isinstance(own, Mapping):
            result[section] = {**own, **values} if isinstance(values, Mapping) else values
    return result


def reference() -> list[tuple[str, str, str, str]]:
    """Every setting as (section, key, default as TOML, meaning); "not set" where there is no default."""
    rows = []
    defaults = Experiment().model_dump(mode="json")
    for section, field in Experiment.model_fields.items():
        for key, setting in field.annotation.model_fields.items():  # type: ignore[union-attr]
            rows.append((section, key, _shown(defaults[section][key], setting), _described(setting)))
    return rows


def _shown(default: object, setting: FieldInfo) -> str:
    """A default as in a TOML file; distances of pixels as the fraction that papers write."""
    if default is None:
        return "not set"
    return f'"{default * 255:g}/255"' if isinstance(default, float) and is_pixels(setting) else json.dumps(default)


def _described(setting: FieldInfo) -> str:
    """The meaning of a setting on one line, with its choices if it has any."""
    words = choices(setting.annotation)
    meaning = " ".join((setting.description or "").split())
    return f"{meaning} Choices: {', '.join(words)}." if words else meaning
