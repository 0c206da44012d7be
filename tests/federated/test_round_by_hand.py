"""Two rounds of FedRBN with three clients, recomputed in NumPy without any of the package's code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.data.samples import Client
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.objectives import Calibrated
from fedrbn.federated.propagation import Propagation
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import federate, initial_state
from fedrbn.types import Role

Array = npt.NDArray[np.float64]
EPS, STEP, LR, LAM, TEMPERATURE = 0.1, 0.08, 0.1, 0.3, 0.05
BN_EPS, MOMENTUM = 1e-5, 0.1


@dataclass
class Statistics:
    mean: Array = field(default_factory=lambda: np.zeros(3))
    var: Array = field(default_factory=lambda: np.ones(3))


@dataclass
class Weights:
    """θ and one client's w, b of batch norm."""

    first: Array
    first_bias: Array
    gamma: Array
    beta: Array
    last: Array
    last_bias: Array

    def step(self, gradient: dict[str, Array]) -> None:
        for name, slope in gradient.items():
            setattr(self, name, getattr(self, name) - LR * slope)


def passed(
    x: Array, y: npt.NDArray[np.int64], w: Weights, stats: Statistics, *, batch: bool
) -> tuple[dict[str, Array], Array]:
    """Gradient of the mean cross-entropy by the weights, and by x; with `batch` the statistics move."""
    n = len(x)
    z = x @ w.first.T + w.first_bias
    mean, var = (z.mean(0), z.var(0)) if batch else (stats.mean, stats.var)
    unit = (z - mean) / np.sqrt(var + BN_EPS)
    h = w.gamma * unit + w.beta
    r = np.maximum(h, 0)
    logits = r @ w.last.T + w.last_bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    d_logits = (p - np.eye(p.shape[1])[y]) / n
    d_h = (d_logits @ w.last) * (h > 0)
    d_unit = d_h * w.gamma
    if batch:
        # the batch's mean and variance depend on z too: both directions are projected out
        d_z = (d_unit - d_unit.mean(0) - unit * (d_unit * unit).mean(0)) / np.sqrt(var + BN_EPS)
        stats.mean = (1 - MOMENTUM) * stats.mean + MOMENTUM * mean
        stats.var = (1 - MOMENTUM) * stats.var + MOMENTUM * var * n / (n - 1)
    else:
        d_z = d_unit / np.sqrt(var + BN_EPS)
    gradient = {
        "first": d_z.T @ x,
        "first_bias": d_z.sum(0),
        "gamma": (d_h * unit).sum(0),
        "beta": d_h.sum(0),
        "last": d_logits.T @ r,
        "last_bias": d_logits.sum(0),
    }
    return gradient, d_z @ w.first


def mixed(a: float, one: dict[str, Array], b: float, other: dict[str, Array]) -> dict[str, Array]:
    return {name: a * one[name] + b * other[name] for name in one}


@dataclass
class User:
    x: Array
    y: npt.NDArray[np.int64]
    adversarial: bool
    clean: Statistics
    noised: Statistics
    gamma: Array
    beta: Array

    def update(self, theta: dict[str, Array], calibrate: bool) -> dict[str, Array]:
        """Algorithm 1 on one batch that holds all of the user's data."""
        w = Weights(gamma=self.gamma, beta=self.beta, **theta)
        if self.adversarial:
            _, slope = passed(self.x, self.y, w, self.noised, batch=False)
            assert (slope != 0).mean() > 0.5, "an attack that finds no slope would make this test easy"
            attacked = np.clip(self.x + np.clip(STEP * np.sign(slope), -EPS, EPS), 0, 1)
            clean, _ = passed(self.x, self.y, w, self.clean, batch=True)
            noised, _ = passed(attacked, self.y, w, self.noised, batch=True)
            w.step(mixed(0.5, clean, 0.5, noised))
        elif calibrate:
            noised, _ = passed(self.x, self.y, w, self.noised, batch=False)
            clean, _ = passed(self.x, self.y, w, self.clean, batch=True)
            w.step(mixed(1 - LAM, clean, LAM, noised))
        else:
            w.step(passed(self.x, self.y, w, self.clean, batch=True)[0])
        self.gamma, self.beta = w.gamma, w.beta
        return {name: getattr(w, name) for name in theta}


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def propagated(users: list[User]) -> None:
    """Eqs. 3-4 for a network with one layer of batch norm."""
    donors = [user for user in users if user.adversarial]
    for user in users:
        if not user.adversarial:
            score = np.array(
                [
                    (cosine(user.clean.mean, d.clean.mean) + cosine(user.clean.var, d.clean.var)) / 2 / TEMPERATURE
                    for d in donors
                ]
            )
            alpha = np.exp(score) / np.exp(score).sum()
            user.noised.mean = sum((a * d.noised.mean for a, d in zip(alpha, donors, strict=True)), np.zeros(3))
            user.noised.var = sum((a * d.noised.var for a, d in zip(alpha, donors, strict=True)), np.zeros(3))


def federated(theta: dict[str, Array], users: list[User], rounds: int) -> dict[str, Array]:
    for number in range(rounds):
        sent = [user.update(theta, calibrate=number > 0) for user in users]
        count = np.array([len(user.y) for user in users], dtype=np.float64)
        theta = {
            name: sum((c * one[name] for c, one in zip(count, sent, strict=True)), np.zeros_like(theta[name]))
            / count.sum()
            for name in theta
        }
        propagated(users)
    return theta


def by_hand(members: dict[str, Client], rounds: int) -> tuple[dict[str, Array], dict[str, User]]:
    state = {name: tensor.double().numpy() for name, tensor in network().state_dict().items()}
    theta = {"first": state["1.weight"], "first_bias": state["1.bias"]}
    theta |= {"last": state["4.weight"], "last_bias": state["4.bias"]}
    users = {}
    for name, member in members.items():
        x, y = member.train.pixels(slice(None))
        users[name] = User(
            x.flatten(1).double().numpy(),
            y.numpy(),
            member.role is Role.AT,
            Statistics(),
            Statistics(),
            state["2.weight"],
            state["2.bias"],
        )
    return federated(theta, list(users.values()), rounds), users


def by_package(members: dict[str, Client], rounds: int) -> ServerState:
    method = replace(
        fedrbn(PGD(eps=EPS, steps=1, step_size=STEP, random_start=False)),
        calibration=Calibrated(LAM),
        propagation=Propagation(temperature=TEMPERATURE),
    )
    net = method.network(network())
    todo = plan(method, net, list(members.values()), rounds=rounds)
    *_, (state, _) = federate(initial_state(net, todo), todo, serial(ClientHost(members, net)))
    return state


@pytest.mark.parametrize(
    "members",
    [
        clients((Role.AT, 9), (Role.ST, 6)),
        clients((Role.AT, 9), (Role.ST, 6), (Role.AT, 12)),
    ],
    ids=["one donor", "two donors"],
)
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_rounds_agree_with_numpy(members: dict[str, Client], rounds: int) -> None:
    theta, users = by_hand(members, rounds)
    state = by_package(members, rounds)
    expected = {
        "network.1.weight": theta["first"],
        "network.1.bias": theta["first_bias"],
        "network.4.weight": theta["last"],
        "network.4.bias": theta["last_bias"],
    }
    assert state.shared.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(state.shared[name].numpy(), value, atol=1e-5, rtol=1e-5, err_msg=name)
    for name, user in users.items():
        own = {
            "clean.weight": user.gamma,
            "clean.bias": user.beta,
            "clean.running_mean": user.clean.mean,
            "clean.running_var": user.clean.var,
            "noised.running_mean": user.noised.mean,
            "noised.running_var": user.noised.var,
        }
        for part, value in own.items():
            found = state.personal[name][f"network.2.{part}"].numpy()
            np.testing.assert_allclose(found, value, atol=1e-5, rtol=1e-5, err_msg=f"{name} {part}")
