"""Flower in one process gives the weights and the record of the embedded run, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedrbn
from fedrbn.federated.protocol import ServerState
from fedrbn.flower.log import events
from fedrbn.runs.directory import RunDirectory

from .small import CLIENTS, experiment, grid, last, served


def assert_same(ours: ServerState, theirs: ServerState) -> None:
    assert (ours.round, ours.reported) == (theirs.round, theirs.reported)
    assert list(ours.personal) == list(theirs.personal)
    for name, tensor in ours.shared.items():
        assert torch.equal(tensor, theirs.shared[name]), name
    for client, own in ours.personal.items():
        for name, tensor in own.items():
            assert torch.equal(tensor, theirs.personal[client][name]), (client, name)


@pytest.mark.parametrize("method", ["fedrbn", "fatavg"])
def test_same_weights_and_record_as_embedded(method: str, tmp_path: Path) -> None:
    chosen = experiment(method={"name": method})
    embedded = fedrbn.run(chosen, tmp_path / "embedded")
    record = served(tmp_path, "flower", chosen)
    assert_same(last(tmp_path / "flower"), last(tmp_path / "embedded"))
    assert record == embedded, "accuracies, intervals, cost, digest of the test samples: all of it"
    ours, theirs = (RunDirectory.open(tmp_path / name) for name in ("flower", "embedded"))
    assert ours.description() == theirs.description()
    for left, right in zip(ours.records("rounds.jsonl"), theirs.records("rounds.jsonl"), strict=True):
        timeless = [_without_times(record) for record in (left, right)]
        assert timeless[0] == timeless[1]


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    clients = {
        client: {name: value for name, value in metrics.items() if name != "seconds"}
        for client, metrics in record["clients"].items()
    }
    return {**record, "seconds": None, "clients": clients}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("fatavg-free", {"replays": 1}),  # remembers noise from round to round, on the client's disk
        ("fedrob", {}),  # remembers its affine map
        ("fatmeta", {}),  # adapts on the client's data before it is evaluated
        ("finetune", {"ft_iterations": 1, "freeze": 1}),  # AT users first, then ST users, with frozen layers
        ("local-at", {}),  # nothing is shared
        ("fedrbn", {"local": "bn-stats", "affine": "separate", "at_loss": "trades"}),
        ("fedrbn", {"momentum": 0.5}),  # the server remembers how far the weights went
    ],
)
def test_methods_with_peculiar_needs(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    chosen = experiment(method={"name": method, **options}, train={"rounds": 2, "validate_every": 2})
    fedrbn.run(chosen, tmp_path / "embedded")
    served(tmp_path, "flower", chosen)
    assert_same(last(tmp_path / "flower"), last(tmp_path / "embedded"))


@pytest.mark.parametrize(
    ("method", "train", "flower"),
    [
        ("fatavg", {"at_weight": 2.0}, {}),  # the server computes the mean, so it weighs there too
        ("fedbn", {}, {"roles": "budget"}),  # nobody is an AT user, whatever nodes can afford
    ],
)
def test_weights_of_roles_and_plain_methods(
    method: str, train: dict[str, Any], flower: dict[str, Any], tmp_path: Path
) -> None:
    chosen = experiment(method={"name": method}, train={"rounds": 1, "validate_every": 1, **train})
    fedrbn.run(chosen, tmp_path / "embedded")
    record = served(tmp_path, "flower", chosen, grid(role="AT"), **flower)
    assert_same(last(tmp_path / "flower"), last(tmp_path / "embedded"))
    assert {user["role"] for user in record["users"].values()} == ({"ST"} if method == "fedbn" else {"AT", "ST"})


def test_bytes_and_participants_are_logged(tmp_path: Path) -> None:
    chosen = experiment(train={"rounds": 1, "validate_every": 1})
    served(tmp_path, "run", chosen)
    log = tmp_path / "run" / "events.jsonl"
    (trained,) = events(log, "train")
    assert trained["round"] == 1
    assert sorted(trained["clients"]) == sorted(CLIENTS)
    assert not trained["failed"]
    weights = sum(tensor.nbytes for tensor in last(tmp_path / "run").shared.values())
    assert weights < trained["theta"] < weights + 10_000, "θ and a header"
    for traffic in trained["clients"].values():
        assert trained["theta"] < traffic["down"] < trained["theta"] + 50_000
        assert weights < traffic["up"]
    assert trained["down"] == sum(traffic["down"] for traffic in trained["clients"].values())
    (finished,) = events(log, "round")
    assert finished["took_part"] == list(CLIENTS)
    assert finished["seconds"] > 0


def test_bfloat16_halves_the_bytes_and_stays_close(tmp_path: Path) -> None:
    """Rounding to 8 significant bits is at most 2⁻⁹ of a value; the server's own θ is never rounded."""
    chosen = experiment(train={"rounds": 2, "validate_every": 2}, method={"name": "fatavg"})
    served(tmp_path, "whole", chosen)
    served(tmp_path, "half", chosen, transport="bfloat16")
    whole, half = last(tmp_path / "whole"), last(tmp_path / "half")
    (wide, *_), (narrow, *_) = (events(tmp_path / name / "events.jsonl", "train") for name in ("whole", "half"))
    assert narrow["theta"] < 0.55 * wide["theta"]
    assert narrow["up"] < 0.55 * wide["up"]
    differ = False
    for name, tensor in whole.shared.items():
        differ |= not torch.equal(tensor, half.shared[name])
        torch.testing.assert_close(half.shared[name], tensor, rtol=0.05, atol=0.02)
    assert differ, "rounding leaves its mark"
    assert any(not torch.equal(t, t.bfloat16().float()) for t in half.shared.values()), "the server's θ is exact"
