"""The methods of the benchmark table as values: what each role minimises, what stays local, what is propagated.

A new method is a row: `dataclasses.replace(fatavg(attack), local=Local.BATCH_NORM)`, no subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from fedrbn import plugins
from fedrbn.attacks import Attack
from fedrbn.config import ConfigError, MethodConfig
from fedrbn.federated.aggregation import Local
from fedrbn.federated.objectives import Adversarial, Calibrated, Objective, Standard
from fedrbn.federated.propagation import Propagation, Weighting
from fedrbn.nets.dual_bn import Affine, DualNet, dual, single
from fedrbn.types import Branch, Role


@dataclass(frozen=True)
class Method:
    """One row of the benchmark table."""

    name: str
    at: Objective
    """What AT users minimise."""
    st: Objective = field(default_factory=Standard)
    """What ST users minimise while they have no estimated BN_a."""
    calibration: Calibrated | None = None
    """What ST users minimise once they have one (Eq. 5); None is standard training throughout."""
    warmup: int = 0
    """Rounds at the start without calibration."""
    dual_bn: bool = False
    affine: Affine = Affine.SHARED
    local: Local = Local.NOTHING
    propagation: Propagation | None = None
    proximal: float = 0.0
    """μ of (μ/2)‖w − w_t‖² on the shared weights; 0 has no such term."""
    predict: Branch = Branch.CLEAN
    """The branch that predicts, for clients whose branch was trained or estimated; the others predict with BN_c."""

    def __post_init__(self) -> None:
        if self.propagation is not None and (not self.dual_bn or self.local in {Local.NOTHING, Local.EVERYTHING}):
            raise ConfigError(
                f"got method {self.name!r} with propagation, dual_bn={self.dual_bn} and local={self.local.value!r}; "
                "expected a dual network whose statistics are local: method.local = 'bn' or 'bn-stats'."
            )
        if self.predict is Branch.NOISED and not self.dual_bn:
            raise ConfigError(
                f"got method {self.name!r} predicting with BN_a; expected a method with dual batch norm. "
                "Leave method.predict out."
            )

    def objective(self, role: Role, calibrate: bool) -> Objective:
        """What a client of this role minimises; `calibrate` says whether an ST client has an estimated BN_a."""
        if role is Role.AT:
            return self.at
        return self.calibration if calibrate and self.calibration is not None else self.st

    def network(self, net: nn.Module) -> DualNet:
        """The network as this method trains it: with two sets of batch-norm statistics, or with one."""
        return dual(net, self.affine) if self.dual_bn else single(net)

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that differ."""
        return tuple(Branch) if self.dual_bn else (Branch.CLEAN,)


def fedrbn(attack: Attack) -> Method:
    """The paper's method: dual, local batch norm; BN_a propagated to ST users, who calibrate with it."""
    return Method(
        "fedrbn",
        at=Adversarial(attack),
        calibration=Calibrated(lam=0.5),
        dual_bn=True,
        local=Local.BATCH_NORM,
        propagation=Propagation(),
        predict=Branch.NOISED,
    )


def fatavg(attack: Attack) -> Method:
    """Federated adversarial training: FedAvg, where AT users train adversarially."""
    return Method("fatavg", at=Adversarial(attack))


def fatprox(attack: Attack) -> Method:
    """FedProx with adversarial training: FATAvg whose clients stay close to the shared weights."""
    return replace(fatavg(attack), name="fatprox", proximal=1e-3)


def fatbn(attack: Attack) -> Method:
    """FedBN with adversarial training: batch norm stays local."""
    return replace(fatavg(attack), name="fatbn", local=Local.BATCH_NORM)


def fatavg_dbn(attack: Attack) -> Method:
    """FATAvg with dual batch norm: BN_c averaged over all users, BN_a over the AT users."""
    return replace(fatavg(attack), name="fatavg+dbn", dual_bn=True, predict=Branch.NOISED)


METHODS: Mapping[str, Callable[[Attack], Method]] = {
    "fedrbn": fedrbn,
    "fatavg": fatavg,
    "fatprox": fatprox,
    "fatbn": fatbn,
    "fatavg+dbn": fatavg_dbn,
}


def configure(config: MethodConfig, attack: Attack) -> Method:
    """The named method with the given options in place of its own; an option it does not have is refused."""
    method = _named(config, attack)
    wanted = {key for key, value in config.model_dump(exclude={"name"}).items() if value is not None}
    useless = wanted - settings(method).keys()
    if useless:
        key = sorted(useless)[0]
        raise ConfigError(
            f"got method.{key} for method {method.name!r}, which has no such part; expected one of "
            f"{', '.join(sorted(settings(method))) or 'no options'}. Leave it out, or choose another method."
        )
    return _with_options(method, config)


def settings(method: Method) -> dict[str, Any]:
    """The options of a method and their values, by their names in the config: also which options it has."""
    values: dict[str, Any] = {"local": method.local.value, "mu": method.proximal}
    if method.dual_bn:
        values |= {"affine": method.affine.value, "predict": method.predict.value}
    if method.propagation is not None:
        values |= {
            "weighting": method.propagation.weighting.value,
            "temperature": method.propagation.temperature,
        }
    if method.calibration is not None:
        clip = method.calibration.clip
        values |= {"lam": method.calibration.lam, "clip": "off" if clip is None else clip, "warmup": method.warmup}
    return values


def _named(config: MethodConfig, attack: Attack) -> Method:
    if config.name in METHODS:
        return METHODS[config.name](attack)
    if not plugins.is_reference(config.name):
        raise plugins.unknown("method", config.name, METHODS)
    found = plugins.resolve(config.name)
    method = found(attack) if callable(found) else found
    if not isinstance(method, Method):
        raise ConfigError(
            f"got {config.name!r}, which gives {type(method).__name__}; expected a fedrbn.Method, or a function of "
            "the attack that returns one."
        )
    return method


def _with_options(method: Method, config: MethodConfig) -> Method:
    changes: dict[str, Any] = {}
    if config.local is not None:
        changes["local"] = Local(config.local)
    if config.mu is not None:
        changes["proximal"] = config.mu
    if config.affine is not None:
        changes["affine"] = Affine(config.affine)
    if config.predict is not None:
        changes["predict"] = Branch(config.predict)
    if config.warmup is not None:
        changes["warmup"] = config.warmup
    if method.propagation is not None:
        weighting = Weighting(config.weighting) if config.weighting else method.propagation.weighting
        temperature = config.temperature or method.propagation.temperature
        changes["propagation"] = Propagation(weighting, temperature)
    if method.calibration is not None:
        lam = method.calibration.lam if config.lam is None else config.lam
        clip = method.calibration.clip if config.clip is None else config.clip
        changes["calibration"] = Calibrated(lam, None if clip == "off" else clip)
    return replace(method, **changes)
