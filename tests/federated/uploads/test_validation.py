"""What the server refuses at its boundary, and that it says why; every method's real uploads pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from federated.tiny import clients, plan, site
from fedrbn.attacks import PGD
from fedrbn.errors import UploadError
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import METHODS, fedrbn
from fedrbn.federated.protocol import Train, Upload
from fedrbn.federated.server import federate, initial_state, round_of
from fedrbn.federated.uploads.validation import UploadCheck, layer_of, length, scratch, worst_layer
from fedrbn.types import Role, Tensors

ATTACK = PGD(eps=0.1, steps=2, step_size=0.06)
WHO = clients((Role.AT, 8), (Role.ST, 6))
METHOD = fedrbn(ATTACK)
PLACE = site(METHOD, WHO)
PLAN = plan(METHOD, PLACE.net, list(WHO.values()))
START = initial_state(PLACE.net, PLAN)
SENT = {**START.shared, **START.personal["c0"]}
LENGTHS = {name: length(tensor) for name, tensor in SENT.items() if tensor.is_floating_point()}
GATE = UploadCheck(PLAN.members[0], SENT, LENGTHS, PLAN.names, max_update=10.0, scratch=scratch())
WEIGHT, VARIANCE, MEAN = "network.1.weight", "network.2.noised.running_var", "network.2.clean.running_mean"


def real(client: str) -> Upload:
    job = Train(client, WHO[client].role.duty, START.personal[client], calibrate=False)
    (upload,) = serial(PLACE)(round_of(START, PLAN), [job])
    assert isinstance(upload, Upload)
    return upload


GOOD = real("c0")


def with_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Upload:
    def changed(part: Tensors) -> Tensors:
        return {key: change(value.clone()) if key == name else value for key, value in part.items()}

    return replace(GOOD, shared=changed(GOOD.shared), personal=changed(GOOD.personal))


def put(value: float) -> Callable[[Tensor], Tensor]:
    """Overwrite the first number of a tensor."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def test_a_sound_upload_passes_and_its_movement_is_measured() -> None:
    """‖θ_k − θ‖ / ‖θ‖ over all parameters, statistics left out; w, b of batch norm are among the parameters."""
    parameters = dict(PLACE.net.named_parameters())
    sent = {**GOOD.shared, **GOOD.personal}
    moved = math.sqrt(sum(float((sent[name] - SENT[name]).double().square().sum()) for name in parameters))
    before = math.sqrt(sum(float(SENT[name].double().square().sum()) for name in parameters))
    found = GATE.admit(GOOD)
    assert found.growth == pytest.approx(moved / before)
    assert 0 < found.growth < 1
    farthest = max(parameters, key=lambda name: float((sent[name] - SENT[name]).norm()))
    assert found.layer == layer_of(farthest)


BAD: dict[str, tuple[Upload, str]] = {
    "nan": (
        with_tensor(WEIGHT, put(math.nan)),
        r"got 1 of 12 values in layer 'network\.1' \(weight\) that are NaN or infinite; expected numbers\. .*train\.lr",
    ),
    "infinite statistics": (with_tensor(MEAN, put(math.inf)), r"1 of 3 values in layer 'network\.2\.clean'"),
    "exploded": (
        with_tensor(WEIGHT, lambda w: w + 1e6),
        r"times as long as the weights it started from, most of it in layer 'network\.1'; expected at most 10 times",
    ),
    "overflowing": (with_tensor(WEIGHT, lambda w: torch.full_like(w, 3e38)), r"most of it in layer 'network\.1'"),
    "negative variance": (
        with_tensor(VARIANCE, put(-1e-6)),
        r"got a variance of -1e-06 in the noised branch of batch-norm layer 'network\.2'; expected 0 or more",
    ),
    "huge variance": (with_tensor(VARIANCE, put(1e9)), r"statistics of norm 1e\+09 in the noised branch"),
    "shape": (with_tensor(WEIGHT, lambda w: w.T), r"'network\.1\.weight' of shape \(4, 3\).*expected \(3, 4\)"),
    "type": (with_tensor(WEIGHT, lambda w: w.half()), r"torch\.float16; expected \(3, 4\) and torch\.float32"),
    "missing name": (
        replace(GOOD, shared={k: v for k, v in GOOD.shared.items() if k != WEIGHT}),
        r"got shared tensors without 'network\.1\.weight'; expected all 4 of them",
    ),
    "unknown name": (replace(GOOD, shared=GOOD.shared | {"../x": torch.ones(1)}), r"got shared tensor '\.\./x'"),
    "in the wrong part": (
        replace(GOOD, shared=GOOD.shared | GOOD.personal, personal={}),
        r"got shared tensor 'network\.2\.clean\.bias'",
    ),
    "no personal part": (replace(GOOD, personal={}), "got personal tensors without"),
    "no samples": (replace(GOOD, samples=0), "got 0 samples; expected the 8 that the client registered with"),
    "a billion samples": (replace(GOOD, samples=10**9), "got 1000000000 samples; expected the 8"),
    "a negative number of samples": (replace(GOOD, samples=-8), "got -8 samples"),
    "samples that are no count": (replace(GOOD, samples=8.0), r"got 8\.0 samples"),  # type: ignore[arg-type]
    "loss": (replace(GOOD, metrics={"loss": math.nan}), "got nan as the training loss; expected a number"),
    "no loss": (replace(GOOD, metrics={}), "got None as the training loss"),
    "text as a metric": (
        replace(GOOD, metrics={**GOOD.metrics, "x": "<b>"}),  # type: ignore[dict-item]
        "metric 'x' that is not finite",
    ),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, "12", None, [1.0]], ids=str)
@pytest.mark.parametrize("metric", ["loss", "steps", "seconds", "own"])
def test_every_metric_is_a_finite_number(metric: str, value: object) -> None:
    GATE.admit(replace(GOOD, metrics={**GOOD.metrics, metric: 1.5}))
    with pytest.raises(UploadError, match=r"got .*; expected (a|finite) number"):
        GATE.admit(replace(GOOD, metrics={**GOOD.metrics, metric: value}))  # type: ignore[dict-item]


@pytest.mark.parametrize("fault", BAD)
def test_what_cannot_be_used_is_refused_with_a_reason(fault: str) -> None:
    upload, message = BAD[fault]
    with pytest.raises(UploadError, match=message):
        GATE.admit(upload)


def test_st_users_do_not_send_bn_a() -> None:
    check = replace(GATE, member=PLAN.members[1], sent={**START.shared, **START.personal["c1"]})
    upload = real("c1")
    check.admit(upload)
    with pytest.raises(UploadError, match=r"got personal tensor 'network\.2\.noised"):
        check.admit(replace(upload, personal=GOOD.personal))


def test_an_update_is_measured_against_a_norm_of_at_least_one() -> None:
    """Weights that start at zero: 12 + 2·3 values of 1/2 have the norm √(18/4), and count as that many."""
    zero = {name: torch.zeros_like(tensor) for name, tensor in SENT.items()}
    half = replace(
        GOOD,
        shared={k: torch.full_like(v, 0.5) if k == WEIGHT else torch.zeros_like(v) for k, v in GOOD.shared.items()},
        personal={k: torch.full_like(v, 0.5) if "clean" in k else v for k, v in GOOD.personal.items()},
    )
    half.personal[MEAN] = torch.zeros(3)
    half.personal["network.2.clean.num_batches_tracked"] = torch.tensor(1)
    check, norm = replace(GATE, sent=zero, lengths=dict.fromkeys(zero, 0.0)), math.sqrt(18 / 4)
    assert replace(check, max_update=norm + 1e-6).admit(half).growth == pytest.approx(norm)
    with pytest.raises(UploadError, match="times as long"):
        replace(check, max_update=norm - 1e-6).admit(half)


@pytest.mark.parametrize("name", METHODS)
def test_what_clients_of_every_method_really_send_passes(name: str, tmp_path: Path) -> None:
    method = METHODS[name](ATTACK)
    place = replace(site(method, WHO), store=tmp_path)
    todo = plan(method, place.net, list(WHO.values()), rounds=2)
    _, report = next(federate(initial_state(place.net, todo), todo, serial(place)))
    assert report.failures == ()
    assert all(0 <= moved.growth < 1 for moved in report.moved.values())


def test_the_worst_layer() -> None:
    net = site(METHOD, WHO).net
    with torch.no_grad():
        net.network[4].bias[0] = -1e9  # type: ignore[index, operator]
        assert worst_layer(net) == "The largest value is in layer 'network.4' (1e+09)."
        net.network[1].weight[0, 0] = math.inf  # type: ignore[index, operator]
        assert worst_layer(net) == "The first layer with NaN or infinite values is 'network.1'."
