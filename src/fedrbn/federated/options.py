"""Checks the options of a method in the `[method]` section of an experiment and applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from fedrbn.attacks import Attack, from_config
from fedrbn.config import Experiment, MethodConfig, plugins
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.donors import Combine, Guard
from fedrbn.federated.methods import METHODS, Method
from fedrbn.federated.objectives import Adversarial, Calibrated, Fractional, Mart, Objective, Trades
from fedrbn.federated.propagation import Weighting
from fedrbn.federated.training.affine import AffineTraining
from fedrbn.federated.training.free import Free
from fedrbn.federated.training.meta import Meta
from fedrbn.federated.training.sgd import Sgd
from fedrbn.nets.dual_bn import Affine
from fedrbn.types import Branch

AT_LOSSES: Mapping[str, type[Adversarial | Trades | Mart]] = {"ce": Adversarial, "trades": Trades, "mart": Mart}
"""What `method.at_loss` can name."""


def configure(config: MethodConfig, attack: Attack) -> Method:
    """The named method with the given options in place of its defaults; an option that it lacks is an error."""
    method = named(config.name, attack)
    known = options(method)
    useless = {key for key, value in config.model_dump(exclude={"name"}).items() if value is not None} - known
    if useless:
        key = sorted(useless)[0]
        raise ConfigError(
            f"got method.{key} for method {method.name!r}, which has no such option; expected one of "
            f"{', '.join(sorted(known)) or 'no options'}. Leave it out, or choose another method."
        )
    return _with_options(method, config)


def options(method: Method) -> frozenset[str]:
    """The names of the options of a method; `beta` also needs an `at_loss` that uses it."""
    return at_options(method) | settings(method).keys()


def at_options(method: Method) -> frozenset[str]:
    """The options that concern only AT users."""
    own = _at_training_settings(method).keys()
    return frozenset(own | {"beta"} if "at_loss" in own else own)


def settings(method: Method) -> dict[str, Any]:
    """The options of a method and their values, by their names in the config."""
    values: dict[str, Any] = {"logits": "calibrated" if method.class_prior else "plain", "momentum": method.momentum}
    if method.fine_tuning is None:
        values["local"] = method.local.value
    else:  # fine-tuning starts from a single model, so nothing can stay local
        values |= {"ft_iterations": method.fine_tuning.iterations, "freeze": method.fine_tuning.freeze}
    if method.dual_bn:
        values |= {"affine": method.affine.value, "predict": method.predict.value}
        values["select"] = None if method.select is None else method.select.value
    if method.propagation is not None:
        values |= {
            "weighting": method.propagation.weighting.value,
            "temperature": method.propagation.temperature,
            **_guard_settings(method.propagation.guard),
        }
    if method.calibration is not None:
        values |= {"lam": method.calibration.lam, "warmup": method.warmup}
    if isinstance(method.calibration, Calibrated):
        values["clip"] = "off" if method.calibration.clip is None else method.calibration.clip
    match method.training:
        case Sgd(proximal=mu):
            values["mu"] = mu
        case Meta(inner=inner, meta=meta):
            values |= {"inner_lr": inner, "meta_lr": meta}
    return values | _at_training_settings(method)


def _guard_settings(guard: Guard) -> dict[str, Any]:
    """The limits on donors; None where there are none, so that the keys of runs without them do not change."""
    combine = None if guard.combine is Combine.MEAN else guard.combine.value
    return {"donor_cap": guard.cap, "donor_mean": combine, "donor_range": guard.plausible}


def _at_training_settings(method: Method) -> dict[str, Any]:
    match method.at_training:
        case Free(replays=replays):
            return {"replays": replays}
        case AffineTraining(rate=rate, gamma=gamma, steps=steps):
            return {"affine_lr": rate, "gamma": gamma, "affine_steps": steps}
        case None:
            return _at_settings(method.at)
    return {}


def _at_settings(objective: Objective) -> dict[str, Any]:
    share = 1.0
    if isinstance(objective, Fractional):
        share, objective = objective.share, objective.adversarial
    named = [name for name, kind in AT_LOSSES.items() if isinstance(objective, kind)]
    if not named:
        return {}  # a user's own objective has its own settings
    beta = {"beta": objective.beta} if isinstance(objective, Trades | Mart) else {}
    return {"at_loss": named[0], "at_share": share, **beta}


def named(name: str, attack: Attack) -> Method:
    """A method by its name in `METHODS`, or your own as `package.module:object`."""
    if name in METHODS:
        return METHODS[name](attack)
    if not plugins.is_reference(name):
        raise plugins.unknown("method", name, METHODS)
    found = plugins.resolve(name)
    if not isinstance(found, Method) and not plugins.accepts(found, 1):
        raise ConfigError(plugins.wrong_signature("method", name, found))
    method = plugins.called("method", name, found, attack) if callable(found) else found
    if not isinstance(method, Method):
        raise ConfigError(
            f"got {name!r}, which gives {type(method).__name__}; expected a fedrbn.Method, or a function of "
            "the attack that returns one."
        )
    return method


def _with_options(method: Method, config: MethodConfig) -> Method:
    changes: dict[str, Any] = {}
    if config.local is not None:
        changes["local"] = Local(config.local)
    if config.affine is not None:
        changes["affine"] = Affine(config.affine)
    if config.predict is not None:
        changes["predict"] = Branch(config.predict)
    if config.select is not None:
        changes["select"] = Branch(config.select)
    if config.warmup is not None:
        changes["warmup"] = config.warmup
    if config.momentum is not None:
        changes["momentum"] = config.momentum
    if config.logits is not None:
        changes["class_prior"] = config.logits == "calibrated"
    if method.propagation is not None:
        weighting = Weighting(config.weighting) if config.weighting else method.propagation.weighting
        temperature = config.temperature or method.propagation.temperature
        guard = _replaced(
            method.propagation.guard,
            cap=config.donor_cap,
            combine=None if config.donor_mean is None else Combine(config.donor_mean),
            plausible=config.donor_range,
        )
        changes["propagation"] = replace(method.propagation, weighting=weighting, temperature=temperature, guard=guard)
    if method.calibration is not None:
        changes["calibration"] = _replaced(method.calibration, lam=config.lam)
        if config.clip is not None:
            clip = None if config.clip == "off" else config.clip
            changes["calibration"] = replace(changes["calibration"], clip=clip)
    if method.fine_tuning is not None:
        changes["fine_tuning"] = _replaced(method.fine_tuning, iterations=config.ft_iterations, freeze=config.freeze)
    return replace(method, **changes, **_training_changes(method, config), at=_at_objective(method, config))


def _training_changes(method: Method, config: MethodConfig) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    match method.training:
        case Sgd():
            changes["training"] = _replaced(method.training, proximal=config.mu)
        case Meta():
            changes["training"] = _replaced(method.training, inner=config.inner_lr, meta=config.meta_lr)
    match method.at_training:
        case Free():
            changes["at_training"] = _replaced(method.at_training, replays=config.replays)
        case AffineTraining():
            changes["at_training"] = _replaced(
                method.at_training, rate=config.affine_lr, gamma=config.gamma, steps=config.affine_steps
            )
    return changes


def _at_objective(method: Method, config: MethodConfig) -> Objective:
    """What AT users minimise, with `at_loss`, `beta` and `at_share` in place of the method's own."""
    own = _at_settings(method.at)
    if not own:
        return method.at
    inner = cast(Adversarial | Trades | Mart, method.at.adversarial if isinstance(method.at, Fractional) else method.at)
    name = config.at_loss or own["at_loss"]
    if name == "ce":
        if config.beta is not None:
            raise ConfigError(
                f"got method.beta = {config.beta:g} with method.at_loss = 'ce', which has no such weight; expected "
                "at_loss = 'trades' or 'mart'. Choose one, or leave beta out."
            )
        made: Objective = Adversarial(inner.attack)
    else:
        kind = Trades if name == "trades" else Mart
        made = _replaced(inner if isinstance(inner, kind) else kind(inner.attack), beta=config.beta)
    share = own["at_share"] if config.at_share is None else config.at_share
    return made if share == 1 else Fractional(made, share)


def _replaced(value: Any, **wanted: Any) -> Any:
    """The dataclass value with the settings that are not None."""
    return replace(value, **{name: new for name, new in wanted.items() if new is not None})


def resolved(experiment: Experiment) -> Experiment:
    """The experiment with the method's defaults filled in, so that equal runs have equal keys."""
    return with_method_options(experiment, configure(experiment.method, from_config(experiment.attack)))


def with_method_options(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with the method's defaults filled in, and without AT users if the method has none: then all
    values of `federation.at` give the same run."""
    values = {"name": experiment.method.name, **settings(method)}
    changes: dict[str, Any] = {"method": MethodConfig.model_validate(values)}
    if not method.adversarial:
        changes["federation"] = experiment.federation.model_copy(update={"at": 0.0})
    return experiment.model_copy(update=changes)
