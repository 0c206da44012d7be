"""The ε that is spent, against the formulas and against opacus itself."""

from __future__ import annotations

import builtins
import math
from statistics import NormalDist

import pytest
from opacus.accountants import RDPAccountant

from federated.tiny import clients, network, plan
from fedrbn.attacks import PGD
from fedrbn.config import ConfigError, make
from fedrbn.federated.assemble import assemble
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.privacy.accountant import ORDERS, epsilon, privacy_record, releases_again, spending
from fedrbn.federated.server import federate, initial_state
from fedrbn.types import Role

DELTA = 1e-5


def by_formula(noise: float, times: int) -> float:
    """Rényi divergence of order α of the Gaussian mechanism is α / (2 z²) a release, releases add up; then
    ε = min over α of that − (ln δ + ln α) / (α − 1) + ln((α − 1)/α) (Balle et al. 2020)."""
    return min(
        times * a / (2 * noise**2) - (math.log(DELTA) + math.log(a)) / (a - 1) + math.log((a - 1) / a) for a in ORDERS
    )


@pytest.mark.parametrize(("noise", "times"), [(1.0, 1), (4.0, 30), (0.5, 100), (0.005, 20), (50.0, 1)])
def test_epsilon_is_that_of_the_formula(noise: float, times: int) -> None:
    assert epsilon([(noise, times)], DELTA) == pytest.approx(by_formula(noise, times), rel=1e-9)


def test_epsilon_is_that_of_opacus_with_its_own_orders_or_a_little_tighter() -> None:
    theirs = RDPAccountant()
    for _ in range(30):
        theirs.step(noise_multiplier=4.0, sample_rate=1.0)
    ours = epsilon([(4.0, 30)], DELTA)
    assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=0.02)


def test_epsilon_bounds_the_exact_one_of_a_single_release() -> None:
    """The Gaussian mechanism with z = 1 is exactly (ε, δ) private for δ = Φ(½ − ε) − e^ε Φ(−½ − ε) (Balle & Wang 2018).

    The accountant's ε must not be below the exact one, for which δ = 1e-5, and is within a tenth of it.
    """
    phi = NormalDist().cdf
    found = epsilon([(1.0, 1)], DELTA)
    assert phi(0.5 - found) - math.exp(found) * phi(-0.5 - found) <= DELTA
    least = 0.9 * found
    assert phi(0.5 - least) - math.exp(least) * phi(-0.5 - least) > DELTA


def test_releases_of_different_kinds_add_up() -> None:
    """1/z² adds: 1/1² + 1/2² = 1/0.8944²."""
    assert epsilon([(1.0, 1), (2.0, 1)], DELTA) == pytest.approx(epsilon([(math.sqrt(0.8), 1)], DELTA))
    assert epsilon([(2.0, 4)], DELTA) == pytest.approx(epsilon([(1.0, 1)], DELTA))


def test_what_a_client_spends() -> None:
    """Three rounds of 12 images in batches of 4: three steps a round. Statistics leave 3 times, and 9 times more if
    every step is noisy; updates leave 3 times."""
    method = fedrbn(PGD())
    who = list(clients((Role.AT, 12), (Role.ST, 12)).values())
    todo = plan(method, method.network(network()), who, rounds=3, batch_size=4)

    def releases(**privacy: object) -> list[tuple[str, float, int]]:
        found = spending(make({"privacy": privacy}), todo, 3)
        assert found is not None
        assert found.epsilon == epsilon([(noise, times) for _, noise, times in found.releases], found.delta)
        return list(found.releases)

    assert releases(statistics_noise=2.0) == [("statistics", 2.0, 3)]
    assert releases(statistics_noise=2.0, statistics_when="step") == [("statistics", 2.0, 12)]
    assert releases(update_noise=1.5) == [("update, noise at the client", 1.5, 3)]
    both = releases(statistics_noise=2.0, update_noise=1.5, update_at="server")
    assert both == [("statistics", 2.0, 3), ("update, noise at the server", 1.5, 3)]
    assert spending(make({}), todo, 3) is None


def test_a_round_that_is_repeated_counts_again() -> None:
    """Three rounds, the second asked for three times: five releases of statistics, and of three steps each fifteen."""
    method = fedrbn(PGD())
    who = list(clients((Role.AT, 12), (Role.ST, 12)).values())
    todo = plan(method, method.network(network()), who, rounds=3, batch_size=4)
    once = make({"privacy": {"statistics_noise": 2.0, "secret": True}})
    found = spending(once, todo, 3, {1: 2})
    assert found is not None
    assert found.releases == (("statistics", 2.0, 5),)
    every = spending(make({"privacy": {"statistics_noise": 2.0, "statistics_when": "step"}}), todo, 3, {1: 2})
    assert every is not None
    assert every.releases == (("statistics", 2.0, 5 + 15),)
    assert releases_again(once)
    assert not releases_again(make({"privacy": {"statistics_noise": 2.0}})), "noise of the seed is the same again"
    assert not releases_again(make({"privacy": {"secret": True}})), "there is no noise"


def test_with_sampling_only_rounds_that_a_client_took_part_in_count() -> None:
    """One of two clients a round, for 8 rounds: the busier one has taken part at least 4 and fewer than 8 times."""
    method = fedrbn(PGD())
    who = list(clients((Role.AT, 12), (Role.ST, 12)).values())
    todo = plan(method, method.network(network()), who, rounds=8, participants=1)
    found = spending(make({"privacy": {"statistics_noise": 2.0}}), todo, 8)
    assert found is not None
    ((_, _, times),) = found.releases
    assert times == max(sum(m.id == name for r in range(8) for m in todo.schedule.sample(r)) for name in ("c0", "c1"))
    assert 4 <= times < 8


def test_records_and_messages_say_what_is_spent() -> None:
    experiment = make({"privacy": {"statistics_noise": 4.0, "delta": 1e-6}})
    method = fedrbn(PGD())
    todo = plan(method, method.network(network()), list(clients((Role.AT, 12)).values()), rounds=30)
    record = privacy_record(experiment, todo)["privacy"]
    assert record["delta"] == 1e-6
    assert record["releases"] == [{"what": "statistics", "noise_multiplier": 4.0, "times": 30}]
    assert str(spending(experiment, todo, 30)).startswith(f"({record['epsilon']:.4g}, 1e-06)-differential privacy")
    assert privacy_record(make({}), todo) == {}


def test_without_opacus_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("opacus"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'fedrbn\[privacy\]'"):
        epsilon([(1.0, 1)], DELTA)


def test_an_assembled_experiment_hands_privacy_to_its_clients() -> None:
    """A client that may move its statistics by a millionth uploads, in effect, those that it was sent."""
    values = {
        "data": {"domains": ["plain"], "image_size": 16},
        "federation": {"users_per_domain": 2, "fraction": 0.05, "validation": 0.0, "at": 0.5},
        "model": {"width": 0.0625},
        "train": {"rounds": 1},
        "attack": {"steps": 1},
        "run": {"workers": 1},
    }
    moved = {}
    for name, privacy in {"open": {}, "private": {"statistics_noise": 1e-9, "statistics_clip": 1e-6}}.items():
        assembly = assemble(make({**values, "privacy": privacy}))
        start = initial_state(assembly.net, assembly.plan)
        with assembly.executor() as execute:
            ((after, _),) = federate(start, assembly.plan, execute)
        names = [name for layer in assembly.plan.names.batch_norms for name in layer.statistics]
        moved[name] = max((after.personal["plain-0"][n] - start.personal["plain-0"][n]).abs().max() for n in names)
        assert ("privacy" in privacy_record(assembly.experiment, assembly.plan)) == bool(privacy)
    assert moved["open"] > 1e-2
    assert moved["private"] < 1e-5
