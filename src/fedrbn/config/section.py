"""What all sections of settings have in common, and the kinds of numbers in them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from fedrbn.config.text import length_hint

Share = Annotated[float, Field(gt=0, le=1)]
"""A part of a whole: above 0, at most 1."""
Rate = Annotated[float, Field(gt=0, le=1e30)]
"""A number per second, or a number of bytes."""


def _as_fraction(value: object) -> object:
    """Accept "8/255" as well as 0.031…, because papers write ε this way."""
    if isinstance(value, str) and value.count("/") == 1:
        above, below = value.split("/")
        try:
            return float(above) / float(below)
        except (ValueError, ZeroDivisionError):
            return value
    return value


def _within_pixels(value: float) -> float:
    """At most 1; a user who writes 8 usually means 8 of 255 grey levels."""
    if value > 1:
        raise ValueError(f"at most 1, because pixels are in [0, 1] ({length_hint(value)})")
    return value


Pixels = Annotated[float, BeforeValidator(_as_fraction), Field(ge=0), AfterValidator(_within_pixels)]
"""A distance in pixel space, where images are in [0, 1]; the text "8/255" is accepted too."""


def is_pixels(setting: FieldInfo) -> bool:
    """Whether a setting is a distance in pixel space."""
    return any(isinstance(rule, AfterValidator) and rule.func is _within_pixels for rule in setting.metadata)


class Section(BaseModel):
    """The base of all sections: they are immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
