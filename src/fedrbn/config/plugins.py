"""Your own code by name: a setting that names a built-in also accepts `package.module:object`."""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrbn.config.text import nearest
from fedrbn.errors import ConfigError, FedRBNError

GIVEN = "(given in Python)"
"""What a run's config says instead of a name if the network or data set was passed as an object."""


def given_again(kind: str) -> ConfigError:
    """The error for a run whose network or data were passed as an object that is now missing."""
    return ConfigError(
        f"got a run whose {kind} was passed as a Python object; expected the same object again. Pass {kind}=… to "
        "resume, evaluate or load, or name it in the config as package.module:object."
    )


def is_reference(name: str) -> bool:
    """Whether a name refers to an importable object rather than to a built-in."""
    return ":" in name and all(part.isidentifier() for part in name.replace(":", ".").split("."))


def resolve(name: str) -> object:
    """The object behind `package.module:object` (dots after the colon reach into it)."""
    module_name, _, attribute = name.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"got {name!r}, whose module {module_name!r} cannot be imported ({error}); expected an importable "
            "package.module:object. Install the package or run from the folder that holds it."
        ) from error
    except Exception as error:
        raise ConfigError(
            f"got {name!r}, whose module {module_name!r} fails when it is imported: {cause(error)}. Expected an "
            "importable package.module:object. Correct the module."
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"got {name!r}, but {module_name!r} has no {attribute!r}; expected the name of an object in it."
                f"{_similar(part, found)}"
            )
        found = getattr(found, part)
    return found


def _similar(name: str, holder: object) -> str:
    """A question that offers the most similar of the public names in a module or class, without imported modules."""
    public = [each for each in dir(holder) if not each.startswith("_")]
    close = nearest(name, [each for each in public if not inspect.ismodule(getattr(holder, each, None))])
    return f" Did you mean {close!r}?" if close else ""


_MOST_SAID = 300
"""Maximum characters of an error's message that are shown."""


def cause(error: BaseException) -> str:
    """An error in user code as one line: its type, its message, and the last line of user code in the traceback."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:_MOST_SAID]}{location(error)}"


def location(error: BaseException) -> str:
    """The last line of user code in an error's traceback, such as ` (own.py, line 8)`; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _is_theirs(file: str) -> bool:
    """Whether a file is not of this package, PyTorch or Python: their lines do not show users what to correct."""
    if file.startswith("<frozen "):
        return False
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    ours = [Path(__file__).parents[1], *([Path(torch).parent] if torch else [])]
    if any(Path(file).is_relative_to(folder) for folder in ours):
        return False
    installed = "site-packages" in Path(file).parts
    return installed or not Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])


SIGNATURES: Mapping[str, str] = {
    "method": "(attack) -> fedrbn.Method",
    "attack": "(loss, x, generator) -> x_adv, or (config) -> such an attack, where config has eps, steps and step_size",
    "aggregation": "(shared, contributions) -> shared",
    "network": "a torch.nn.Module, its class, or (classes, channels, image_size, width) -> one, any of these keywords",
    "data": "(image_size) -> fedrbn.DataSet or a federation",
}
"""The signature of your own object of each kind; docs/extending.md has an example of each."""


def accepts(found: object, arguments: int) -> bool:
    """Whether this is a callable that takes this number of positional arguments."""
    if not callable(found):
        return False
    try:
        inspect.signature(found).bind(*[None] * arguments)
    except (TypeError, ValueError):
        return False
    return True


def called(kind: str, name: str, function: Callable[..., Any], *arguments: object) -> Any:
    """What your own function returns; an error in it becomes a message with its line, without a traceback."""
    try:
        return function(*arguments)
    except FedRBNError:
        raise
    except Exception as error:
        raise ConfigError(
            f"your {kind} {name!r} failed: {cause(error)}. Expected {SIGNATURES[kind]}. Correct it."
        ) from None


def wrong_signature(kind: str, name: str, found: object) -> str:
    """The error message for an object with the wrong signature for its kind; it includes the right one."""
    try:
        has = f"has the signature {inspect.signature(found)}" if callable(found) else f"is {type(found).__name__}"
    except (TypeError, ValueError):
        has = f"is {type(found).__name__} without a signature"
    return (
        f"got {kind} {name!r}, which {has}; expected {SIGNATURES[kind]}. `fedrbn new {kind} NAME` writes a "
        "working example."
    )


def unknown(kind: str, name: str, known: Iterable[str], *, own: bool = True) -> ConfigError:
    """The error for an unknown name, with the closest known one; `own` if `package.module:object` is accepted too."""
    names = list(known)
    meant = nearest(name, names, cutoff=0.4)
    guess = f" Did you mean {meant!r}?" if meant else ""
    also = ", or package.module:object" if own else ""
    return ConfigError(f"got {kind} {name!r}; expected one of {', '.join(names)}{also}.{guess}")
