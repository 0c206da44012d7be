"""Pydantic's errors reworded: which setting, what it got, what was expected, and what the setting means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from fedrbn.config.text import nearest, shortened, unknown_name

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_OF_TYPE: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number with fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text in quotes",
    "tuple_type": 'a list such as ["a", "b"]',
    "list_type": 'a list such as ["a", "b"]',
    "dict_type": "a table such as { key = value }",
    "model_type": "a table such as { key = value }",
}
"""What was expected if a value has the wrong type. A union reports such an error for each of its types."""

_IN_RANGE: Mapping[str, str] = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
}
"""What was expected if the type is right."""

_MEMBERS = {"constrained-int": "a whole number", "constrained-float": "a number"}
"""Pydantic's names for members of a union that have a range."""

_UNKNOWN_KEY = ("extra_forbidden", "invalid_key")
"""A key that is unknown or is not text."""

_OWN_WORDS = "Value error, "
"""The prefix that pydantic adds to errors of our validators."""


def explained(errors: Sequence[ErrorDetails], root: type[BaseModel]) -> str:
    """The errors of an experiment's sections, one line per setting."""
    places: dict[tuple[int | str, ...], list[_Problem]] = {}
    for error in errors:
        places.setdefault(error["loc"][:2], []).append(_problem(error, root))
    return "\n".join(_line(_closest(problems), root) for problems in places.values())


def choices(annotation: Any) -> tuple[str, ...]:
    """The choices of a setting, if its type is a choice between words or None; otherwise empty."""
    members = [member for member in _members(annotation) if member is not type(None)]
    return _words(annotation) if all(get_origin(member) is Literal for member in members) else ()


def quoted(words: Sequence[str]) -> str:
    """Words in TOML's quotes: a single word, or "one of" a list."""
    listed = ", ".join(json.dumps(word) for word in words)
    return listed if len(words) == 1 else f"one of {listed}"


@dataclass(frozen=True)
class _Problem:
    """An error and its setting."""

    error: ErrorDetails
    path: tuple[int | str, ...]
    """Keys and list indices, from the section down."""
    field: FieldInfo | None
    """The innermost known setting on this path."""
    siblings: tuple[str, ...]
    """The keys next to the last one of the path."""

    @property
    def name(self) -> str:
        """The path as messages show it: section.key, section.key.inner or section.key[0]."""
        first, *rest = self.path
        return str(first) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)

    @property
    def of_type(self) -> bool:
        """Whether the error says that the value has the wrong type."""
        kind = self.error["type"]
        return kind in _OF_TYPE or (kind == "literal_error" and not isinstance(self.error["input"], str))


def _problem(error: ErrorDetails, root: type[BaseModel]) -> _Problem:
    """Follow the location of an error through the settings; pydantic's names for members of a union are skipped."""
    path: list[int | str] = []
    field, siblings, models = None, tuple(root.model_fields), [root]
    last = len(error["loc"]) - 1
    for index, part in enumerate(error["loc"]):
        owner = next((model for model in models if part in model.model_fields), None)
        if owner is not None:
            field, siblings = owner.model_fields[str(part)], tuple(owner.model_fields)
            models = _models(field.annotation)
        elif index == last and error["type"] in _UNKNOWN_KEY:
            siblings = tuple(key for model in models for key in model.model_fields)
        elif not isinstance(part, int):
            continue
        path.append(part)
    return _Problem(error, tuple(path), field, siblings)


def _closest(problems: list[_Problem]) -> list[_Problem]:
    """Of the errors of one setting, those of the union member that the user probably meant.

    A union reports errors for each member. In order of preference: the member with the deepest error, the one with an
    unknown key, the one whose type matches the value.
    """
    deepest = max(len(problem.path) for problem in problems)
    inner = [problem for problem in problems if len(problem.path) == deepest]
    misspelt = [problem for problem in inner if problem.error["type"] in _UNKNOWN_KEY]
    return misspelt[:1] or [problem for problem in inner if not problem.of_type] or inner


def _line(problems: list[_Problem], root: type[BaseModel]) -> str:
    first = problems[0]
    got = shortened(first.error["input"])
    if not first.path:  # there are no sections
        return f"got {got}; expected sections such as [data] with key = value lines."
    if first.error["type"] in _UNKNOWN_KEY:
        return unknown_name(str(first.path[-1]), first.siblings, _kind_of_key(first))
    if len(first.path) == 1:
        own = first.error["msg"].removeprefix(_OWN_WORDS)
        table = f"got {got}; expected a table of settings: [{first.name}] followed by key = value lines."
        return f"[{first.name}]: {table if own == first.error['msg'] else own}"
    if first.error["type"] == "missing":
        return f"{first.name}: got nothing; expected a value next to {got}.{_meaning(first, root)}"
    expected = _joined([_expected(problem, several=len(problems) > 1) for problem in problems])
    return f"{first.name}: got {got}; expected {expected}{_guess(problems)}{_meaning(first, root)}"


def _kind_of_key(problem: _Problem) -> str:
    outer = problem.path[:-1]
    if len(outer) > 1:
        return f"key of {'.'.join(map(str, outer))}"
    return f"key of [{outer[0]}]" if outer else "section"


def _expected(problem: _Problem, *, several: bool) -> str:
    kind, context = problem.error["type"], problem.error.get("ctx", {})
    if kind == "literal_error":
        return quoted(_words(problem.field.annotation if problem.field else None))
    if kind in _IN_RANGE:
        bounds = {key: f"{value:g}" if isinstance(value, float) else value for key, value in context.items()}
        within = _IN_RANGE[kind].format(**bounds)
        member = _MEMBERS.get(str(problem.error["loc"][-1]))
        return f"{member} ({within})" if several and member else within
    return _OF_TYPE.get(kind) or problem.error["msg"].removeprefix(_OWN_WORDS)


def _joined(phrases: list[str]) -> str:
    """Each phrase once; a whole number is a number."""
    kept = [phrase for phrase in dict.fromkeys(phrases) if phrase != "a whole number" or "a number" not in phrases]
    return " or ".join(kept)


def _guess(problems: list[_Problem]) -> str:
    """The end of the sentence, with the closest word to a misspelt one."""
    got = problems[0].error["input"]
    words = [word for problem in problems if problem.field for word in _words(problem.field.annotation)]
    meant = nearest(got, words) if isinstance(got, str) and len(words) > 1 else None
    return f". Did you mean {json.dumps(meant)}?" if meant else "."


def _meaning(problem: _Problem, root: type[BaseModel]) -> str:
    """The sentence of the schema that says what a setting means."""
    section, key = problem.path[:2]
    (model,) = _models(root.model_fields[str(section)].annotation)
    described = " ".join((model.model_fields[str(key)].description or "").split())
    return f" Meaning: {described}" * bool(described)


def _members(annotation: Any) -> Iterator[Any]:
    """The members of a union, or the type itself, without what `Annotated` adds."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal or not arguments:
        yield annotation
    elif hasattr(annotation, "__metadata__"):
        yield from _members(arguments[0])
    else:
        for argument in arguments:
            yield from _members(argument)


def _words(annotation: Any) -> tuple[str, ...]:
    literals = [member for member in _members(annotation) if get_origin(member) is Literal]
    return tuple(word for literal in literals for word in get_args(literal))


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [member for member in _members(annotation) if isinstance(member, type) and issubclass(member, BaseModel)]
