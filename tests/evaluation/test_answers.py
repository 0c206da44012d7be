"""Answers that are not to the questions, from an executor of one's own or a node, are a failure of their client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedrbn import config
from fedrbn.errors import FederationError
from fedrbn.evaluation.protocol import EvaluationSettings, evaluate_clients
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.protocol import Answers, Job, Result, Round, Upload
from fedrbn.federated.server import initial_state
from fedrbn.types import Tensors

SETTINGS: dict[str, Any] = {
    "data": {"domains": ["plain"], "image_size": 8},
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 0.03, "test_samples": 4},
    "model": {"width": 1 / 16},
    "attack": {"steps": 1},
    "run": {"workers": 1},
}
RIGHT = torch.ones(4, dtype=torch.bool)


def without(given: Tensors, start: str) -> Tensors:
    return {name: answer for name, answer in given.items() if not name.startswith(start)}


ALTERED: dict[str, Callable[[Answers], object]] = {
    "the clean answer missing": lambda given: replace(given, correct=without(given.correct, "clean")),
    "the attacked answer missing": lambda given: replace(given, correct=without(given.correct, "pgd")),
    "a check missing": lambda given: replace(given, correct=without(given.correct, "check directional")),
    "no answers": lambda given: replace(given, correct={}),
    "one too many": lambda given: replace(given, correct=given.correct | {"other@clean": RIGHT}),
    "a check that was not asked": lambda given: replace(given, correct=given.correct | {"check x@clean": RIGHT}),
    "the easy images only": lambda given: replace(
        given,
        correct={name: answer[: 4 if number else 1] for number, (name, answer) in enumerate(given.correct.items())},
    ),
    "more than was asked": lambda given: replace(given, correct={name: RIGHT.repeat(9) for name in given.correct}),
    "an upload": lambda given: Upload(given.client, given.round, {}, {}, 5, {"loss": 1.0}),
    "nothing": lambda given: None,
}


@pytest.fixture(scope="module")
def prepared() -> Assembly:
    return assemble(config.make(SETTINGS))


@pytest.mark.parametrize("fault", ALTERED)
def test_answers_to_something_else_are_a_failure_of_their_client(fault: str, prepared: Assembly) -> None:
    with prepared.executor() as execute:

        def altered(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
            for result in execute(round_, jobs):
                given = isinstance(result, Answers) and result.client == "plain-0"
                yield ALTERED[fault](result) if given else result  # type: ignore[misc, arg-type]

        settings = EvaluationSettings(checks=fault == "a check missing", adaptive=False, samples=4)
        state = initial_state(prepared.net, prepared.plan)
        with pytest.raises(FederationError, match=r"client 'plain-0' could not be evaluated: got .*; expected"):
            evaluate_clients(prepared, state, altered, settings)
