"""The first layers of a network, which fine-tuning can leave unchanged.

A layer is a module that has parameters and is not a batch norm, in the order in which modules are registered. The batch
norm that follows a layer belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrbn.errors import ConfigError
from fedrbn.nets.dual_bn import DualBatchNorm, DualNet


@dataclass(frozen=True)
class FirstLayers:
    """The parameters (by name) and the batch norms of the first layers of a network."""

    parameters: frozenset[str]
    batch_norms: tuple[DualBatchNorm, ...]


def first_layers(net: DualNet, count: int) -> FirstLayers:
    """The first `count` layers; at least one layer must be left to train."""
    own: list[list[str]] = []
    norms: list[list[DualBatchNorm]] = []
    inside: set[int] = set()
    for prefix, module in net.named_modules():
        names = [f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)]
        if isinstance(module, DualBatchNorm):
            inside |= {id(part) for part in module.modules()}
            names = [f"{prefix}.{name}" for name, _ in module.named_parameters()]
            if own:
                own[-1] += names
                norms[-1].append(module)
        elif names and id(module) not in inside:
            own.append(names)
            norms.append([])
    if count >= max(1, len(own)):
        raise ConfigError(
            f"got method.freeze = {count} for a network of {len(own)} layers; expected at most {len(own) - 1}, so that "
            "something is left to fine-tune."
        )
    return FirstLayers(
        frozenset(name for names in own[:count] for name in names),
        tuple(norm for layer in norms[:count] for norm in layer),
    )
