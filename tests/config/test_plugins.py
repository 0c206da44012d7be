"""Own code by name: what is said of a name that is not there."""

from __future__ import annotations

import pytest

from fedrbn.config.plugins import resolve
from fedrbn.errors import ConfigError


def test_a_misspelt_object_is_answered_with_the_most_similar_name() -> None:
    with pytest.raises(ConfigError, match=r"'fractions' has no 'Fractoin'.* Did you mean 'Fraction'\?$"):
        resolve("fractions:Fractoin")


def test_nothing_is_offered_where_nothing_is_similar() -> None:
    with pytest.raises(ConfigError, match=r"expected the name of an object in it\.$"):
        resolve("fractions:qqq")
