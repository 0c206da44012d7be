"""The methods of the benchmark table as values: what each role minimises, what stays local, what is propagated.

A new method is a row: `dataclasses.replace(fatavg(attack), local=Local.BATCH_NORM)`, no subclass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from fedrbn.attacks import PGD, Attack
from fedrbn.builtin import methods
from fedrbn.errors import ConfigError
from fedrbn.federated.aggregation.layout import Local
from fedrbn.federated.objectives import Adversarial, Calibrated, Calibration, Fractional, Objective, OneStep, Standard
from fedrbn.federated.propagation import Propagation
from fedrbn.federated.training.affine import AffineTraining, check_memory
from fedrbn.federated.training.free import Free
from fedrbn.federated.training.freezing import first_layers
from fedrbn.federated.training.meta import Meta
from fedrbn.federated.training.sgd import Sgd, Training
from fedrbn.nets.dual_bn import Affine, DualNet, dual, single
from fedrbn.types import Branch, Duty, Role


@dataclass(frozen=True)
class FineTuning:
    """A second phase: FedAvg among the ST users, starting from the model that the AT users trained."""

    iterations: int = 200
    """Total steps of every ST user, spread over rounds of the usual length."""
    freeze: int = 0
    """The number of first layers that stay as the AT users trained them."""


@dataclass(frozen=True)
class Method:
    """One row of the benchmark table."""

    name: str
    at: Objective
    """What AT users minimise."""
    st: Objective = field(default_factory=Standard)
    """What ST users minimise while they have no estimated BN_a."""
    calibration: Calibration | None = None
    """What ST users minimise once they have one (Eq. 5, or ours); None is standard training throughout."""
    warmup: int = 0
    """Rounds at the start without calibration."""
    dual_bn: bool = False
    affine: Affine = Affine.SHARED
    local: Local = Local.NOTHING
    propagation: Propagation | None = None
    training: Training = field(default_factory=Sgd)
    """How clients compute an update from their batches and objective."""
    at_training: Training | None = None
    """The same for AT users, if it differs: Free AT and FedRob have their own losses and do not use `at`."""
    class_prior: bool = False
    """Whether training adds the log of the client's class prior to the logits (CalFAT)."""
    fine_tuning: FineTuning | None = None
    """A second phase among the ST users; the first is then among the AT users only. None has one phase for all."""
    momentum: float | None = None
    """Server momentum: the fraction of the last round's change of the shared weights that is added to this round's."""
    predict: Branch = Branch.CLEAN
    """The branch that predicts, for clients where it was trained or estimated; the others predict with BN_c."""
    select: Branch | None = None
    """The branch whose accuracy selects the best round; None is the one that predicts."""

    def __post_init__(self) -> None:
        if not 0 <= (self.momentum or 0) < 1:
            raise ConfigError(
                f"got method {self.name!r} with momentum {self.momentum}; expected a number from 0 (none) to below 1."
            )
        if self.momentum and self.local is Local.EVERYTHING:
            raise ConfigError(
                f"got method {self.name!r} with momentum {self.momentum}; expected none, because it shares no weights "
                "with the server. Leave method.momentum out."
            )
        if self.propagation is not None and (not self.dual_bn or self.local in {Local.NOTHING, Local.EVERYTHING}):
            raise ConfigError(
                f"got method {self.name!r} with propagation, dual_bn={self.dual_bn} and local={self.local.value!r}; "
                "expected a dual network whose statistics are local: method.local = 'bn' or 'bn-stats'."
            )
        if Branch.NOISED in (self.predict, self.select) and not self.dual_bn:
            raise ConfigError(
                f"got method {self.name!r} predicting with or selected by BN_a; expected a method with dual batch "
                "norm. Leave method.predict and method.select out."
            )
        if isinstance(self.at_training, Free | AffineTraining) and self.dual_bn:
            what = "Free AT" if isinstance(self.at_training, Free) else "FedRob's training"
            raise ConfigError(
                f"got method {self.name!r} with {what} and dual batch norm; expected one set of statistics, because "
                f"{what} never sees clean images, so BN_c would stay untrained. Set dual_bn=False."
            )
        if self.fine_tuning is not None and self.local is not Local.NOTHING:
            raise ConfigError(
                f"got method {self.name!r} with fine-tuning and local={self.local.value!r}; expected local='nothing', "
                "because ST users start from one whole model that the AT users have trained."
            )

    def objective(self, duty: Duty, calibrate: bool) -> Objective:
        """The objective of a client with this duty; `calibrate` says whether an ST client has an estimated BN_a."""
        if duty.role is Role.AT:
            return self.at if duty.at_share == 1 else Fractional(self.at, duty.at_share)
        if not calibrate or self.calibration is None:
            return self.st
        return self.calibration if duty.lam is None else replace(self.calibration, lam=duty.lam)

    def calibration_weight(self, duty: Duty) -> float:
        """λ of a client with this duty once there is a BN_a to calibrate with; 0 is standard training."""
        if self.calibration is None or duty.role is Role.AT:
            return 0.0
        return self.calibration.lam if duty.lam is None else duty.lam

    def refusal(self, duty: Duty) -> str | None:
        """Why this method cannot give a client this duty; None if it can."""
        if duty.lam and self.calibration is None:
            return f"method {self.name!r} has no calibration, so expected no λ above 0"
        if 0 < duty.at_share < 1 and self.at_training is not None:
            return f"AT users of method {self.name!r} train all batches in the same way, so expected 0 or 1"
        if 0 < duty.at_share < 1 and isinstance(self.at, Fractional):
            return "method.at_share sets the share of all AT users, so expected 0 or 1. Leave method.at_share out"
        return None

    def training_of(self, role: Role) -> Training:
        """How a client of this role trains."""
        return self.at_training if role is Role.AT and self.at_training is not None else self.training

    def remembers(self, role: Role) -> bool:
        """Whether a client of this role is known to remember something from round to round (`training.memory`)."""
        return bool(getattr(self.training_of(role), "remembers", False))

    @property
    def at_passes(self) -> int | None:
        """Passes over an image of an AT user, if its training defines them; None means those of the objective."""
        return getattr(self.training_of(Role.AT), "passes", None)

    @property
    def adversarial(self) -> bool:
        """Whether AT users train differently from ST users. If not, there are none, whatever `federation.at` says."""
        return self.at_training is not None or not isinstance(self.at, Standard)

    @property
    def attacks_at_st(self) -> bool:
        """Whether ST users attack their own images and therefore need to know the adversary's ε."""
        return isinstance(self.calibration, OneStep)

    @property
    def replays(self) -> int:
        """The cost of a round relative to standard training: Free AT replays every batch."""
        return self.at_training.replays if isinstance(self.at_training, Free) else 1

    @property
    def rate(self) -> float | None:
        """The method's own learning rate, which replaces `train.lr`; None if it has none."""
        return self.training.meta if isinstance(self.training, Meta) else None

    @property
    def adaptation(self) -> float | None:
        """The rate of the local step that a client takes before it is evaluated; None for methods without it."""
        return self.training.inner if isinstance(self.training, Meta) else None

    def check(self, net: DualNet, image_shape: tuple[int, int, int]) -> None:
        """Raise an error that explains why this method cannot use the network or the images."""
        if isinstance(self.at_training, AffineTraining):
            check_memory(image_shape)
        if self.fine_tuning is not None:
            first_layers(net, self.fine_tuning.freeze)

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


def fedrbn_plus(attack: Attack) -> Method:
    """Ours: ST users calibrate with attacked images, made by one step along the gradient of their clean pass.

    BN_c, trained together with attacked images, is then as robust as BN_a and more accurate, so it predicts.
    The server uses momentum, which also helps FedRBN when there are few rounds.
    """
    eps, box = _ball(attack, "fedrbn+, which makes its own noise")
    step = OneStep(0.5, eps, box)
    return replace(fedrbn(attack), name="fedrbn+", calibration=step, momentum=0.8, predict=Branch.CLEAN)


def fedavg(attack: Attack) -> Method:  # noqa: ARG001  (every method is a function of the attack)
    """Plain FedAvg: all clients use standard training, and everything is averaged."""
    return Method("fedavg", at=Standard())


def fedbn(attack: Attack) -> Method:
    """Plain FedBN: FedAvg whose batch norm stays local."""
    return replace(fedavg(attack), name="fedbn", local=Local.BATCH_NORM)


def fatavg(attack: Attack) -> Method:
    """Federated adversarial training: FedAvg, where AT users train adversarially."""
    return Method("fatavg", at=Adversarial(attack))


def fatprox(attack: Attack) -> Method:
    """FedProx with adversarial training: FATAvg whose clients stay close to the shared weights."""
    return replace(fatavg(attack), name="fatprox", training=Sgd(proximal=1e-3))


def fatbn(attack: Attack) -> Method:
    """FedBN with adversarial training: batch norm stays local."""
    return replace(fatavg(attack), name="fatbn", local=Local.BATCH_NORM)


def fatavg_dbn(attack: Attack) -> Method:
    """FATAvg with dual batch norm: BN_c averaged over all users, BN_a over the AT users."""
    return replace(fatavg(attack), name="fatavg+dbn", dual_bn=True, predict=Branch.NOISED)


def fatmeta(attack: Attack) -> Method:
    """Personalised meta-learning with adversarial training: first-order Per-FedAvg, adapted before evaluation."""
    return replace(fatavg(attack), name="fatmeta", training=Meta())


def fedrob(attack: Attack) -> Method:
    """Federated robust training: FedAvg, where AT users train against an affine shift of their images."""
    return replace(fatavg(attack), name="fedrob", at_training=AffineTraining())


def local_at(attack: Attack) -> Method:
    """No federation: each client trains alone, AT users adversarially."""
    return replace(fatavg(attack), name="local-at", local=Local.EVERYTHING)


def fedrbn_noprop(attack: Attack) -> Method:
    """FedRBN without propagation: ST users never get a BN_a, so they neither calibrate nor predict with it."""
    return replace(fedrbn(attack), name="fedrbn-noprop", propagation=None, calibration=None)


def fatavg_free(attack: Attack) -> Method:
    """FATAvg whose AT users train with Free AT."""
    return replace(fatavg(attack), name="fatavg-free", at_training=_free(attack))


def fatbn_free(attack: Attack) -> Method:
    """FATBN whose AT users train with Free AT."""
    return replace(fatbn(attack), name="fatbn-free", at_training=_free(attack))


def finetune(attack: Attack) -> Method:
    """Robustness transfer by fine-tuning: FedAvg among the AT users, then FedAvg among the ST users from that model."""
    return replace(fatavg(attack), name="finetune", fine_tuning=FineTuning())


def _free(attack: Attack) -> Free:
    eps, box = _ball(attack, "Free AT, which makes its own noise")
    return Free(eps, box=box)


def _ball(attack: Attack, what: str) -> tuple[float, tuple[float, float]]:
    """ε and the box of a built-in attack, for a method that does not use the attack itself."""
    if not isinstance(attack, PGD):
        raise ConfigError(
            f"got attack {type(attack).__name__} for {what} within the attack's ε; expected a built-in attack. Set "
            "attack.name to pgd and attack.eps to the radius."
        )
    return attack.eps, attack.box


METHODS: Mapping[str, Callable[[Attack], Method]] = methods.METHODS
"""The methods by their names in `method.name`."""
