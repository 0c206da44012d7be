"""What a wrong setting is answered with."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from fedrbn.config import ConfigError, Experiment, make, reference
from fedrbn.config.wording import choices, explained

LIST = 'a list such as ["a", "b"]'
TABLE = "a table such as { key = value }"


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        # ranges
        ("federation", "fraction", 1.4, "federation.fraction: got 1.4; expected at most 1."),
        ("federation", "fraction", 0, "federation.fraction: got 0; expected above 0."),
        ("train", "rounds", 0, "train.rounds: got 0; expected at least 1."),
        ("privacy", "delta", 1, "privacy.delta: got 1; expected below 1."),
        ("run", "seed", 2**63, "run.seed: got 9223372036854775808; expected below 9223372036854775808."),
        ("train", "lr", math.inf, "train.lr: got inf; expected a finite number."),
        ("train", "rounds", math.nan, "train.rounds: got nan; expected a finite number."),
        # types
        ("train", "rounds", 1.5, "train.rounds: got 1.5; expected a whole number."),
        ("train", "rounds", "many", "train.rounds: got 'many'; expected a whole number."),
        ("train", "rounds", [1], "train.rounds: got [1]; expected a whole number."),
        ("train", "rounds", "1" * 5000, "…; expected a whole number with fewer digits."),
        ("train", "lr", "fast", "train.lr: got 'fast'; expected a number."),
        ("train", "lr", {}, "train.lr: got {}; expected a number."),
        ("run", "fast", "maybe", "run.fast: got 'maybe'; expected true or false."),
        ("run", "fast", [1], "run.fast: got [1]; expected true or false."),
        ("data", "name", 3, "data.name: got 3; expected text in quotes."),
        ("data", "domains", "pen", f"data.domains: got 'pen'; expected {LIST}."),
        ("data", "domains", ["pen", 1], "data.domains[1]: got 1; expected text in quotes."),
        ("federation", "partition", 3, f"federation.partition: got 3; expected {TABLE}."),
        # choices
        (
            "run",
            "device",
            "cdua",
            'run.device: got \'cdua\'; expected one of "auto", "cpu", "cuda", "mps". Did you mean "cuda"?',
        ),
        ("run", "device", 3, 'run.device: got 3; expected one of "auto", "cpu", "cuda", "mps". Meaning'),
        ("method", "weighting", "cosin", 'expected one of "cosine", "uniform". Did you mean "cosine"? Meaning'),
        # unions
        ("federation", "participants", 1.4, "federation.participants: got 1.4; expected at most 1."),
        ("federation", "participants", 0, "got 0; expected a whole number (at least 1) or a number (above 0)."),
        ("federation", "participants", "all", "federation.participants: got 'all'; expected a number."),
        ("method", "clip", -1, "method.clip: got -1; expected above 0."),
        ("method", "clip", "of", "method.clip: got 'of'; expected \"off\"."),
        ("method", "clip", [1], 'method.clip: got [1]; expected a number or "off".'),
        ("federation", "at", 2, "federation.at: got 2; expected at most 1."),
        ("federation", "at", [1], "federation.at[0]: got 1; expected text in quotes."),
        ("federation", "at", {"ratio": 2, "domains": 1}, "federation.at.ratio: got 2; expected at most 1."),
        ("federation", "at", {"ratio": 1, "domains": 1.5}, f"at.domains: got 1.5; expected a whole number or {LIST}."),
        ("federation", "at", {"ratio": 1}, "at.domains: got nothing; expected a value next to {'ratio': 1}."),
        ("federation", "at", {"rato": 1, "domains": 1}, "expected a key of federation.at: did you mean 'ratio'?"),
        ("federation", "partition", {"sizes": "unifrm"}, 'partition.sizes: got \'unifrm\'; expected "uniform".'),
        ("federation", "partition", {"sizes": {"concentration": 0}}, "sizes.concentration: got 0; expected above 0."),
        # keys
        ("train", "round", 3, "got 'round'; expected a key of [train]: did you mean 'rounds'?"),
        ("train", 1, 3, "got '1'; expected a key of [train]: choose from"),
        # lengths in pixels
        ("attack", "eps", 8, "eps: got 8; expected at most 1, because pixels are in [0, 1] (did you mean 8/255?)."),
        ("attack", "step_size", "2", "step_size: got '2'; expected at most 1, because pixels are in [0, 1] (did"),
        ("attack", "eps", 300, "eps: got 300; expected at most 1, because pixels are in [0, 1] (such as 8/255)."),
        ("attack", "eps", -8, "attack.eps: got -8; expected at least 0."),
        ("attack", "eps", "8/0", "attack.eps: got '8/0'; expected a number."),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_answered_in_our_words(section: str, key: Any, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make({section: {key: value}})
    assert message in str(caught.value)
    assert "Input should" not in str(caught.value)
    assert "otherwise" not in str(caught.value)


def test_the_meaning_of_the_setting_follows() -> None:
    with pytest.raises(ConfigError) as caught:
        make({"train": {"rounds": 0}})
    assert str(caught.value) == "train.rounds: got 0; expected at least 1. Meaning: Communication rounds."


def test_each_setting_gets_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        make({"train": {"rounds": 0, "lr": -1}, "federation": {"at": {"ratio": 2, "domains": 1.5}}, "trin": {}})
    assert [line.partition(";")[0] for line in str(caught.value).splitlines()] == [
        "federation.at.ratio: got 2",
        "train.rounds: got 0",
        "train.lr: got -1",
        "got 'trin'",
    ]


class Inner(BaseModel):
    names: list[str] = Field(default=[], min_length=2, max_length=3)
    counts: dict[str, int] = {}


class Outer(BaseModel):
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"names": ["a"]}, "inner.names: got ['a']; expected at least 2 of them."),
        ({"names": ["a", "b", "c", "d"]}, "inner.names: got ['a', 'b', 'c', 'd']; expected at most 3 of them."),
        ({"names": 3}, f"inner.names: got 3; expected {LIST}."),
        ({"counts": 3}, f"inner.counts: got 3; expected {TABLE}."),
    ],
)
def test_types_that_settings_may_have_one_day(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"inner": values})
    assert explained(caught.value.errors(), Outer) == message


def test_choices_are_those_of_settings_that_are_nothing_but_a_choice() -> None:
    assert choices(Literal["a", "b"]) == ("a", "b")
    assert choices(Literal["a", "b"] | None) == ("a", "b")
    assert choices(Annotated[float, Field(gt=0)] | Literal["off"] | None) == ()
    assert choices(int) == ()


def test_the_reference_lists_choices() -> None:
    meanings = {f"{section}.{key}": meaning for section, key, _, meaning in reference()}
    assert meanings["run.device"].endswith(" Choices: auto, cpu, cuda, mps.")
    assert meanings["method.weighting"] == "How donors of BN_a are weighted (Eq. 4). Choices: cosine, uniform."
    assert "Choices" not in meanings["method.clip"]
    assert Experiment().run.device in meanings["run.device"]
