"""Networks: the paper's three by name, anybody's own by reference, and batch norm with two sets of statistics.

    net = build("digits", classes=10, width=1.0, image_shape=(3, 28, 28), seed=1)
    net = dual(net)                                   # see `fedrbn.nets.dual_bn`

Every network takes pixels in [0, 1] and returns logits.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import torch
from torch import nn

from fedrbn.builtin.networks import NETWORKS
from fedrbn.config.plugins import GIVEN, given_again, is_reference, resolve, unknown
from fedrbn.errors import NetworkError
from fedrbn.nets.dual_bn import Affine, DualNet, dual, plain, single

__all__ = ["NETWORKS", "Affine", "DualNet", "build", "dual", "plain", "single"]


def build(name: str, classes: int, width: float, image_shape: tuple[int, int, int], seed: int) -> nn.Module:
    """The network `name` for images of (channels, height, width) pixels, with weights decided by `seed` alone.

    `name` is a key of `NETWORKS`, or `package.module:object` for one's own: a factory, called with those of the
    keywords classes, width, image_size and channels that its signature takes, or a ready network, which is copied with
    the weights it has.
    """
    # Only the CPU's generator is seeded and put back: networks are made there, and no GPU need be woken for it.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        source = _source(name)
        if isinstance(source, nn.Module):
            return copy.deepcopy(source)
        arguments = _arguments(name, source, classes, width, image_shape)
        torch.default_generator.manual_seed(seed)  # again: the import above, if it was the first, may have drawn
        net = source(**arguments)
    if not isinstance(net, nn.Module):
        raise NetworkError(
            f"got {type(net).__name__} from network factory {name!r}; expected an nn.Module. Return the network."
        )
    return net


def _source(name: str) -> nn.Module | Callable[..., object]:
    """The factory or ready network behind a name."""
    if name in NETWORKS:
        factory: Callable[..., object] = NETWORKS[name].load()
        return factory
    if name == GIVEN:
        raise given_again("network")
    if not is_reference(name):
        raise unknown("network", name, NETWORKS)
    source = resolve(name)
    if not isinstance(source, nn.Module) and not callable(source):
        raise NetworkError(
            f"got network {name!r}, which is {type(source).__name__}; expected a factory or an nn.Module. "
            "Refer to a function that returns the network."
        )
    return source


def _arguments(
    name: str, factory: Callable[..., object], classes: int, width: float, image_shape: tuple[int, int, int]
) -> dict[str, float]:
    """What this factory wants to know, out of what we can tell it."""
    channels, rows, columns = image_shape
    offered = {"classes": classes, "width": width, "image_size": rows, "channels": channels}
    signature = inspect.signature(factory)
    kinds = {key: parameter.kind for key, parameter in signature.parameters.items()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = {key: value for key, value in offered.items() if takes_all or kinds.get(key) in by_keyword}
    if "image_size" in accepted and rows != columns:
        raise NetworkError(
            f"got images of {rows}x{columns} pixels for network {name!r}; expected square ones. Set data.image_size, "
            "or use a network factory without the argument image_size."
        )
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise NetworkError(
            f"got network factory {name!r} with the signature {signature} ({error}); expected one that can be called "
            f"with {', '.join(offered)}, or some of these, as keywords. Give its other arguments defaults."
        ) from error
    return accepted
