"""The check-list: is a printed robust accuracy too high? Each line checks exactly the answers that are printed.

An attack that fails looks exactly like a robust network. So every printed attack is compared, image by image, with
independent attacks: a reference with gradients, a black-box search, random noise. The network's gradients are checked
too (`evaluation.diagnosis`). A check that was not measured gets its own line, neither passed nor failed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from fedrbn.attacks import PGD, LocalSearch, Logits, LogitsAttack, Margin, Oblivious, Untargeted, epsilon
from fedrbn.attacks.autoattack import square
from fedrbn.evaluation.accuracy import Accuracy, Deployment
from fedrbn.evaluation.diagnosis import Diagnosis
from fedrbn.evaluation.records import CheckRecord
from fedrbn.federated.protocol import Answers, Question

IMAGES = 256
"""Images that the check-list uses, of all clients together. With fewer, the comparisons count as not measured."""

QUERIES = 1000
"""Queries of the black-box search per image, a fifth of AutoAttack's. The effect of more was not measured."""

SIGNIFICANCE = 0.001
"""How often a line may fail on an honest evaluation that is exactly at its allowance. The number of images that fail is
then binomial, and the line fails above this distribution's 99.9 % point. So the threshold is looser with few images,
and close to the allowance with many."""

MISSED = 0.05
"""Allowance: the share of images that withstand an honest attack but not another one. No attack finds everything:
honest PGD with 7 steps misses up to 5 % of what the reference finds. With 256 images a line fails above 25 (9.8 %); an
attack that misses 15 % is found in 99 of 100 evaluations."""

IRREGULAR = 0.05
"""Allowance: the share of images at which an honest network has no gradient, a misleading one (next to a kink of a
ReLU), or logits that jump. With 256 images a line fails above 25 (9.8 %), and so detects gradients that are 25° off in
97 of 100 evaluations."""


def most(images: int, share: float) -> int:
    """The largest number of failing images that chance explains if each fails with probability `share`."""
    from scipy.stats import binom  # noqa: PLC0415  (a second of CPU that training does not need)

    return int(binom.ppf(1 - SIGNIFICANCE, images, share))


def check_line(
    name: str, passed: bool | None, detail: str, allowed: str = "", why: str = "", column: str = ""
) -> CheckRecord:
    """One line of the check-list; all its keys are written, also the empty ones."""
    return CheckRecord(name=name, passed=passed, detail=detail, allowed=allowed, why=why, column=column)


Attacks: TypeAlias = Mapping[str, LogitsAttack]
"""The attacks whose robust accuracy is printed, by label."""


@dataclass(frozen=True)
class RandomSigns:
    """Noise instead of an attack: every pixel moves by ε, randomly up or down."""

    eps: float

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:  # noqa: ARG002
        """The noised pixels."""
        signs = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
        return (x + self.eps * signs).clamp(0, 1)


def reference(eps: float) -> LogitsAttack:
    """The reference: 50 steps of ε/4 from a random start on the DLR loss. No printed attack may be much weaker."""
    return Margin(PGD(eps=eps, steps=50, step_size=eps / 4))


def single_step(eps: float) -> LogitsAttack:
    """One step of ε on the DLR loss, so cheap that it is tried on all images, not only on those of the other checks.

    An attack that stops working after some images or seconds looks honest on the first ones.
    """
    return Margin(PGD(eps=eps, steps=1, step_size=eps, random_start=False))


UNBOUNDED = Untargeted(PGD(eps=1.0, steps=20, step_size=0.1, random_start=False))
"""An attack that can turn any image into any other, so it must reduce every network to chance."""


def shares(available: Mapping[str, int], total: int = IMAGES) -> dict[str, int]:
    """How many images of each client to use: `total` divided as evenly as possible, or all; at least one each."""
    chosen: dict[str, int] = {}
    for client, count in sorted(available.items(), key=lambda item: item[1]):
        even = -(-(total - sum(chosen.values())) // (len(available) - len(chosen)))
        chosen[client] = min(count, max(1, even))
    return chosen


def radius(attack: LogitsAttack, eps: float) -> float | None:
    """The ε of the ball that must contain an attack's images; `eps` is the run's. None if there is no such ball."""
    if isinstance(attack, Oblivious | LocalSearch):
        return None
    known = epsilon(attack)
    return eps if known is None else known


def questions(deployment: Deployment, attacks: Attacks, eps: float, images: int) -> tuple[Question, ...]:
    """The check-list's questions to a client, besides the printed ones; `eps` is that of the run's threat model."""

    def accuracy(label: str, attack: LogitsAttack, adaptive: bool = False) -> Accuracy:
        return Accuracy(deployment, f"check {label}", attack, adaptive, limit=images)

    asked: list[Question] = [Diagnosis(deployment, images), accuracy("unbounded", UNBOUNDED)]
    for ball in sorted({_judged_at(attack, eps) or 0 for attack in attacks.values()} - {0}):
        asked += [
            accuracy(f"reference {_text(ball)}", reference(ball), adaptive=True),
            accuracy(f"noise {_text(ball)}", RandomSigns(ball)),
            Accuracy(deployment, f"check single step {_text(ball)}", single_step(ball)),
        ]
        if importlib.util.find_spec("pyautoattack") is not None:
            asked.append(accuracy(f"search {_text(ball)}", square(eps=ball, queries=QUERIES)))
    for label, attack in attacks.items():
        if isinstance(attack, Untargeted) and isinstance(attack.attack, PGD):
            pgd = attack.attack
            longer = replace(pgd, steps=5 * pgd.steps)
            wider = replace(pgd, eps=min(1.0, 2 * pgd.eps), steps=2 * pgd.steps)
            asked += [
                accuracy(f"more steps of {label}", Untargeted(longer)),
                accuracy(f"larger ε of {label}", Untargeted(wider)),
            ]
    return tuple(asked)


@dataclass(frozen=True)
class Evidence:
    """All clients' answers to the printed and to the check-list's questions, and each client's deployment."""

    answers: Sequence[Answers]
    deployed: Mapping[str, str]

    def __call__(self, *names: str) -> list[Tensor]:
        """The answers with these names on the images that all of them cover, over all clients."""
        parts = []
        for answer in self.answers:
            found = [answer.correct[self._key(name, answer.client)] for name in names]
            shortest = min(len(each) for each in found)
            parts.append([each[:shortest] for each in found])
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    def has(self, name: str) -> bool:
        """Whether every client has an answer with this name."""
        return all(self._key(name, answer.client) in answer.correct for answer in self.answers)

    def _key(self, name: str, client: str) -> str:
        label = name.removesuffix(" adaptive")
        return f"{label}@{self.deployed[client]}{name.removeprefix(label)}"


def judge(
    evidence: Evidence, attacks: Mapping[str, tuple[str, LogitsAttack]], eps: float, classes: int, needed: int
) -> list[CheckRecord]:
    """The check-list; `attacks` maps each printed column to its attack's label and the attack.

    `eps` is that of the run's threat model. `needed` is the minimum number of images of a comparison.
    """
    if not evidence.answers:
        return [check_line("there are test images", None, "no client has a test image")]
    checks = _network(evidence, classes)
    for column, (label, attack) in attacks.items():
        lines = _not_judged(attack, eps) or _compared(evidence, label, attack, eps, needed)
        checks += [line.model_copy(update={"column": column}) for line in lines]
    return checks


def _network(evidence: Evidence, classes: int) -> list[CheckRecord]:
    """The lines that apply to every attack."""

    def regular(name: str, text: str, why: str, share: float = IRREGULAR) -> CheckRecord:
        (good,) = evidence(f"check {name}")
        return _at_most(int((~good).sum()), len(good), share, text, why)

    (right,) = evidence("check unbounded")
    return [
        regular(
            "repeatable",
            "the same input gives the same logits",
            "randomness (attack the expectation), memory, or logits that depend on the batch or on gradients",
            share=0,
        ),
        regular("smooth", "an invisible change hardly moves the logits", "noise that depends on the input"),
        regular("gradient", "gradients do not vanish", "saturated, quantised or detached logits"),
        regular("directional", "gradients predict how the logits change", "these are not the network's gradients"),
        _at_most(
            int(right.sum()),
            len(right),
            1 / classes,
            "without a bound (ε = 1) an attack reaches chance",
            "the gradient is masked",
            f"{right.double().mean().item():.1%} still right",
        ),
    ]


def _not_judged(attack: LogitsAttack, eps: float) -> list[CheckRecord]:
    """The only line for something that is not an attack in a ball; empty for other attacks."""
    name = "the attack is as strong as a reference"
    if isinstance(attack, Oblivious):
        return [check_line(name, None, "a corruption is not an adversary, so this is not a robust accuracy")]
    if isinstance(attack, LocalSearch):
        return [check_line(name, None, "local search has no ε, so there is no reference for its strength")]
    if not _judged_at(attack, eps):
        return [check_line(name, False, "ε = 0", "ε above 0", "robust accuracy is clean accuracy")]
    return []


def _compared(evidence: Evidence, label: str, attack: LogitsAttack, eps: float, needed: int) -> list[CheckRecord]:
    """The lines of one printed attack."""

    def not_above(low: str, high: str, text: str, why: str) -> CheckRecord:
        """Robust accuracy under `low` is hardly above that under `high`."""
        if not evidence.has(high):
            return check_line(text, None, "pip install 'fedrbn[attacks]' to measure this")
        first, second = evidence(low, high)
        excess = int(first.sum()) - int(second.sum())
        shown = ", ".join(
            f"{_shown(name, label)} {right.double().mean().item():.1%}"
            for name, right in ((low, first), (high, second))
        )
        return _at_most(excess, len(first), MISSED, text, why, shown)

    at = _text(_judged_at(attack, eps) or 0)
    worst = f"{label} adaptive" if evidence.has(f"{label} adaptive") else label
    weak = "the attack is too weak"
    (inside,) = evidence(f"check bounds of {label}")
    images = len(evidence(label, f"check noise {at}")[0])
    checks = [
        _enough(images, needed),
        not_above(label, f"check reference {at}", "a reference attack is not much stronger", weak),
        not_above(worst, f"check reference {at} adaptive", "nor is it stronger through every branch", weak),
        not_above(label, f"check search {at}", "black-box search is not much stronger", "the gradient is masked"),
        not_above(label, f"check noise {at}", "random noise is not stronger", "the attack does not find anything"),
        not_above(label, f"check single step {at}", "a single step is not stronger, on all images", weak),
        _at_most(
            int((~inside).sum()),
            len(inside),
            0,
            "adversarial images stay in [0, 1] and in the ball",
            "not the printed threat model",
        ),
    ]
    if evidence.has(f"check more steps of {label}"):
        stuck = "the attack gets stuck, or its gradient is wrong"
        checks += [
            not_above(f"check more steps of {label}", label, "more steps do not raise robust accuracy", stuck),
            not_above(f"check larger ε of {label}", label, "a larger ε does not raise robust accuracy", stuck),
        ]
    return checks


def _enough(images: int, needed: int) -> CheckRecord:
    text, why = "the comparisons use enough images", "a weak attack could pass by chance"
    if images < needed:
        remedy = f"only {images} images: raise --samples or --subset, or test on more images"
        return check_line(text, None, remedy, f"at least {needed}", why)
    return check_line(text, True, f"{images} images", f"at least {needed}", why)


def _at_most(count: int, images: int, share: float, text: str, why: str, shown: str = "") -> CheckRecord:
    """A line that fails if more images fail than chance explains."""
    limit = most(images, share)
    measured = shown or f"not at {count / images:.1%} of images"
    return check_line(text, count <= limit, measured, f"at most {limit / images:.1%}", why)


def _shown(name: str, label: str) -> str:
    """The name of answers in a line: `this attack adaptive`, `more steps`, `reference 8/255`."""
    if name.startswith("check "):
        return name.removeprefix("check ").removesuffix(f" of {label}")
    return f"this attack{name.removeprefix(label)}"


def _judged_at(attack: LogitsAttack, eps: float) -> float | None:
    """The ε at which an attack is compared with others: its own as printed, but never less than the run's."""
    ball = radius(attack, eps)
    return None if ball is None else max(ball, eps)


def _text(eps: float) -> str:
    return f"{255 * eps:g}/255"
