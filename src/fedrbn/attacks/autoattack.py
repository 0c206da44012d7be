"""AutoAttack (Croce & Hein 2020): the standard ensemble for published robustness, from the package pyautoattack.

The standard version runs APGD on the cross-entropy, targeted APGD on the DLR loss, targeted FAB and Square, each on
the samples that withstood the previous ones. This module makes the package safe to call: parameters, gradients,
buffers, random state and standard output are the same after the attack as before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from fedrbn.attacks.protocols import Logits, check_images
from fedrbn.config.text import length_hint
from fedrbn.errors import AttackError

AttackPart: TypeAlias = Literal["apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square"]
"""One attack of the ensemble; a trailing -t means targeted at the nine likeliest wrong classes."""

_PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
_OF_VERSION: dict[str, tuple[AttackPart, ...]] = {
    "standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "plus": ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"),
    "rand": ("apgd-ce", "apgd-dlr"),
}
_FEWEST_CLASSES = {"apgd-dlr": 3, "apgd-t": 4}


@dataclass(frozen=True)
class AutoAttack:
    """AutoAttack in the L∞ ball of radius eps, called as `attack(logits, x, y, generator)`.

    Samples that withstand it are returned unchanged. `logits` should be deterministic and independent of the other
    samples of a batch, like a network in eval mode. If it is an `nn.Module` in another mode, its buffers (batch-norm
    statistics) are restored afterwards. Changes that any other callable makes are not undone.
    """

    eps: float = 8 / 255
    version: Literal["standard", "plus", "rand"] = "standard"
    """standard is the published one; plus adds untargeted parts and restarts; rand is for randomised networks."""
    only: tuple[AttackPart, ...] | None = None
    """Run only these parts, with their settings in this version; None runs all parts of the version."""
    queries: int = 5000
    """Forward passes of Square; fewer than 5000 are faster, but weaker than the published attack."""
    batch_size: int = 250

    def __post_init__(self) -> None:
        checks = (
            (0 < self.eps <= 1, f"eps {self.eps}", f"a length in (0, 1] ({length_hint(self.eps)})"),
            (self.version in ("standard", "plus", "rand"), f"version {self.version!r}", "standard, plus or rand"),
            (
                self.only is None or (len(self.only) > 0 and set(self.only) <= set(_PARTS)),
                f"only {self.only}",
                f"None, or some of {', '.join(_PARTS)}",
            ),
            (self.queries >= 1, f"queries {self.queries}", "at least 1, 5000 as published"),
            (self.batch_size >= 1, f"batch_size {self.batch_size}", "at least 1"),
        )
        for valid, got, expected in checks:
            if not valid:
                raise AttackError(f"got {got}; expected {expected}. Change this setting of AutoAttack.")
        if importlib.util.find_spec("pyautoattack") is None:
            raise AttackError(
                "got no package pyautoattack; expected it, because it contains AutoAttack. "
                "Install it: pip install 'fedrbn[attacks]'"
            )

    @property
    def parts(self) -> tuple[AttackPart, ...]:
        """The parts that run, in this order."""
        return _OF_VERSION[self.version] if self.only is None else self.only

    def ensure_enough(self, classes: int) -> None:
        """Refuse a network with too few classes for one of the parts."""
        for part in self.parts:
            if classes < _FEWEST_CLASSES.get(part, 2):
                raise AttackError(
                    f"got a network of {classes} classes; expected at least {_FEWEST_CLASSES.get(part, 2)}, because "
                    f"AutoAttack's {part} compares that many logits. Use apgd (its apgd-ce), square, or pgd with "
                    "restarts instead."
                )

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Adversarial pixels; needs thousands of passes per batch."""
        check_images(x)
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        if not len(x):
            return x.detach().clone()
        with torch.inference_mode(False), torch.no_grad(), _host_undisturbed(logits):
            ensemble = self._ensemble(_isolated(logits, x.dtype), x, seed)
            found, _ = ensemble.run_standard_evaluation(
                x.detach().clone().float(), y.clone(), batch_size=self.batch_size
            )
        return _as_tensor(found).to(x.dtype)

    def _ensemble(self, logits: Logits, x: Tensor, seed: int) -> Any:
        """The package's object for this version, with targets limited to the existing classes."""
        import pyautoattack  # noqa: PLC0415  (an extra: only who runs it needs it)

        ensemble = pyautoattack.AutoAttack(
            logits, norm="Linf", eps=self.eps, version=self.version, seed=seed, device=x.device
        )
        ensemble.attacks_to_run = list(self.parts)
        classes = logits(x[:1]).shape[1]
        self.ensure_enough(classes)
        for targeted in (ensemble.apgd_targeted, ensemble.fab):
            targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
        ensemble.square.n_queries = self.queries
        return ensemble


def autoattack(
    eps: float = 8 / 255, version: Literal["standard", "plus", "rand"] = "standard", queries: int = 5000
) -> AutoAttack:
    """All parts of a version of AutoAttack."""
    return AutoAttack(eps=eps, version=version, queries=queries)


def square(eps: float = 8 / 255, queries: int = 5000) -> AutoAttack:
    """Only Square (Andriushchenko et al. 2020): random search on scores, which masked gradients cannot mislead."""
    return AutoAttack(eps=eps, only=("square",), queries=queries)


def apgd(eps: float = 8 / 255, loss: Literal["ce", "dlr", "t"] = "ce") -> AutoAttack:
    """Only APGD: 100 steps of adaptive size on the cross-entropy, the DLR loss or the targeted DLR loss."""
    parts: dict[str, AttackPart] = {"ce": "apgd-ce", "dlr": "apgd-dlr", "t": "apgd-t"}
    if loss not in parts:
        raise AttackError(f"got loss {loss!r}; expected ce, dlr or t (targeted dlr). Choose one of these.")
    return AutoAttack(eps=eps, only=(parts[loss],))


class _AtInput(torch.autograd.Function):
    """Logits whose backward pass ends at the input, so `.backward()` leaves no gradient on the parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, logits: Logits) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.out = logits(ctx.x)
        return _as_tensor(ctx.out.detach())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # FAB asks for one backward pass per class through the same forward pass.
        (at_input,) = torch.autograd.grad(ctx.out, ctx.x, gradients, retain_graph=True)
        return at_input, None


def _isolated(logits: Logits, dtype: torch.dtype) -> Logits:
    """The same logits for the package, which computes in float32 and calls `.backward()`."""

    def native(x: Tensor) -> Tensor:
        return logits(x.to(dtype)).float()

    def isolated(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return _as_tensor(_AtInput.apply(x, native))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return native(x)

    return isolated


@contextlib.contextmanager
def _host_undisturbed(logits: Logits) -> Iterator[None]:
    """Restore what the package changes: torch's global random state, the trace function, and a module's buffers.

    The package seeds torch globally and removes the trace function, which debuggers and coverage need.
    """
    buffers = list(logits.buffers()) if isinstance(logits, nn.Module) else []
    values = [buffer.clone() for buffer in buffers]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    trace = sys.gettrace()
    try:
        with torch.random.fork_rng(devices=devices), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.settrace(trace)
        for buffer, value in zip(buffers, values, strict=True):
            buffer.copy_(value)


def _as_tensor(value: Any) -> Tensor:
    """Give a type to values from untyped code."""
    if not isinstance(value, Tensor):
        raise AttackError(f"got {type(value).__name__}; expected a tensor. Check the version of pyautoattack: 0.2.0.")
    return value
