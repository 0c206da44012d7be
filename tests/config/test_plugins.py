"""Own code by name: what is said of a name that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrbn.config.plugins import resolve
from fedrbn.errors import ConfigError


def test_a_misspelt_object_is_answered_with_the_most_similar_name() -> None:
    with pytest.raises(ConfigError, match=r"'fractions' has no 'Fractoin'.* Did you mean 'Fraction'\?$"):
        resolve("fractions:Fractoin")


def test_nothing_is_offered_where_nothing_is_similar() -> None:
    with pytest.raises(ConfigError, match=r"expected the name of an object in it\.$"):
        resolve("fractions:qqq")


def test_an_imported_module_is_not_offered() -> None:
    """`fractions` imports `operator`, which nobody means by that name."""
    with pytest.raises(ConfigError, match=r"expected the name of an object in it\.$"):
        resolve("fractions:operatr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny = missing", r"NameError: name 'missing' is not defined \(broken_own.py, line 2\)"),
        ("def f()\n    pass", r"SyntaxError: expected ':' \(broken_own.py, line 1\)"),
    ],
    ids=["name", "syntax"],
)
def test_a_module_that_cannot_be_imported_is_answered_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_own.py").write_text(text, encoding="utf-8")
    message = rf"got 'broken_own:f', whose module 'broken_own' fails when it is imported: {said}\. Expected"
    with pytest.raises(ConfigError, match=message):
        resolve("broken_own:f")
