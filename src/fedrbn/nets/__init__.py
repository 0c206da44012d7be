"""Networks: the paper's three by name, your own by reference, and batch norm with two sets of statistics.

    net = build("digits", classes=10, width=1.0, image_shape=(3, 28, 28), seed=1)
    net = dual(net)                                   # see `fedrbn.nets.dual_bn`

Every network takes pixels in [0, 1] and returns logits.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from fedrbn.builtin.networks import NETWORKS
from fedrbn.config.plugins import GIVEN, cause, given_again, is_reference, resolve, unknown
from fedrbn.errors import FedRBNError, NetworkError
from fedrbn.nets.dual_bn import Affine, DualNet, dual, plain, single

__all__ = ["NETWORKS", "Affine", "DualNet", "NetworkSource", "build", "dual", "plain", "single", "state_bytes"]

NetworkSource: TypeAlias = nn.Module | Callable[..., object]
"""A network, or a factory for one: a function or the class of a network."""


def build(
    source: str | NetworkSource, classes: int, width: float, image_shape: tuple[int, int, int], seed: int
) -> nn.Module:
    """A network for images of (channels, height, width) pixels; its weights depend only on `seed`.

    `source` is a key of `NETWORKS`, or `package.module:object` for your own, or such an object itself: a network, which
    is copied with its weights, or a factory, often the network's class. A factory receives those of classes,
    num_classes, channels, in_channels, image_size and width that its signature names.
    A factory with `**kwargs` also receives num_classes and in_channels, if the code behind it accepts them.
    """
    name = source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)
    # Only the CPU generator is seeded and restored: networks are made on the CPU, and no GPU needs to be initialised.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        found = _source(source) if isinstance(source, str) else source
        if isinstance(found, nn.Module):
            return copy.deepcopy(found)
        named, passed_on = _arguments(name, found, classes, width, image_shape)
        try:
            net = _made(found, named, passed_on, seed)
        except FedRBNError:
            raise
        except Exception as error:
            raise NetworkError(
                f"your network factory {name!r} failed: {cause(error)}. Expected it to return a network when "
                f"called with {_listed({**named, **passed_on})}. Correct it."
            ) from None
    if not isinstance(net, nn.Module):
        raise NetworkError(
            f"got {type(net).__name__} from network factory {name!r}; expected an nn.Module. Return the network."
        )
    return net


def state_bytes(name: str, classes: int, width: float, image_shape: tuple[int, int, int]) -> int | None:
    """Bytes of a network's tensors, computed without allocating them; None for your own factory, which may not support
    that."""
    if name not in NETWORKS:
        return None
    with torch.device("meta"):
        net = build(name, classes, width, image_shape, seed=0)
    return sum(int(tensor.nbytes) for tensor in net.state_dict().values())


def _source(name: str) -> NetworkSource:
    """The factory or network with this name."""
    if name in NETWORKS:
        factory: NetworkSource = NETWORKS[name].load()
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


def _made(factory: Callable[..., object], named: dict[str, float], passed_on: dict[str, float], seed: int) -> object:
    """What the factory returns. Arguments in `passed_on` that the code behind its **kwargs rejects are left out."""
    passed_on = dict(passed_on)
    while True:
        torch.default_generator.manual_seed(seed)  # an import or a previous attempt may have drawn numbers
        try:
            return factory(**named, **passed_on)
        except TypeError as error:
            refused = _REFUSED.search(str(error))
            if refused is None or passed_on.pop(refused[1], None) is None:
                raise


_REFUSED = re.compile(r"(?:unexpected keyword argument|multiple values for (?:keyword )?argument) '(\w+)'")


def _arguments(
    name: str, factory: Callable[..., object], classes: int, width: float, image_shape: tuple[int, int, int]
) -> tuple[dict[str, float], dict[str, float]]:
    """The arguments that this factory accepts: those in its signature, and those that its **kwargs may take."""
    channels, rows, columns = image_shape
    offered = {
        "classes": classes,
        "num_classes": classes,
        "width": width,
        "image_size": rows,
        "channels": channels,
        "in_channels": channels,
    }
    signature = inspect.signature(factory)
    kinds = {key: parameter.kind for key, parameter in signature.parameters.items()}
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    accepted = {key: value for key, value in offered.items() if kinds.get(key) in by_keyword}
    if "image_size" in accepted and rows != columns:
        raise NetworkError(
            f"got images of {rows}x{columns} pixels for network {name!r}; expected square images. Set data.image_size, "
            "or use a network factory without the argument image_size."
        )
    try:
        signature.bind(**accepted)
    except TypeError as error:
        raise NetworkError(
            f"got network factory {name!r} with the signature {signature} ({error}); expected one that accepts "
            f"{', '.join(offered)}, or some of these, as keyword arguments. Give its other arguments defaults."
        ) from error
    if inspect.Parameter.VAR_KEYWORD not in kinds.values():
        return accepted, {}
    told = {"num_classes": "classes", "in_channels": "channels"}
    return accepted, {key: offered[key] for key, own in told.items() if not {key, own} & accepted.keys()}


def _listed(arguments: dict[str, float]) -> str:
    return ", ".join(f"{key}={value:g}" for key, value in arguments.items()) or "no arguments"
