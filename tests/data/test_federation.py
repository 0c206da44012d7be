from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrbn.config import Dirichlet, FederationConfig, FirstDomains, Partition
from fedrbn.data import load
from fedrbn.data.federation import build
from fedrbn.data.samples import DataSet, Federation, Samples
from fedrbn.types import Role

Numbered = Callable[..., DataSet]


def _numbers(samples: Samples) -> list[int]:
    """Which images these are; see the fixture `numbered`."""
    return [256 * high + low for high, low in samples.images[:, :, 0, 0].tolist()]


def _at(federation: Federation) -> list[str]:
    return [client.id for client in federation.clients if client.role is Role.AT]


def test_domains_are_cut_to_the_smallest_times_the_fraction(numbered: Numbered) -> None:
    # The smallest has 200, of which half is used: 100 per domain, 25 for each of 4 users; validation takes
    # ceil(25 / 5) = 5. The 40 test images give 10 each.
    config = FederationConfig(users_per_domain=4, fraction=0.5, validation=0.2, at=0.5)
    federation = build(numbered(300, 200), config, seed=1)
    assert [client.id for client in federation.clients] == [f"{d}-{i}" for d in ("d0", "d1") for i in range(4)]
    assert {len(client.train) for client in federation.clients} == {20}
    assert {len(client.validation) for client in federation.clients} == {5}
    assert {len(client.test) for client in federation.clients} == {10}
    assert _at(federation) == ["d0-0", "d0-1", "d1-0", "d1-1"]
    assert federation.equal_sizes
    assert federation.labels == {"d0": "Domain 0", "d1": "Domain 1"}
    assert federation.image_shape == (2, 2, 2)


def test_images_keep_their_labels(numbered: Numbered) -> None:
    federation = build(numbered(200), FederationConfig(users_per_domain=3), seed=1)
    for client in federation.clients:
        assert client.train.labels.tolist() == [number % 10 for number in _numbers(client.train)]


sizes = st.sampled_from(["uniform", Dirichlet(concentration=0.3), Dirichlet(concentration=5)])


@settings(max_examples=40)
@given(
    users=st.integers(1, 8),
    fraction=st.floats(0.4, 1),
    validation=st.floats(0, 0.6),
    how_many=sizes,
    which=sizes,
    seed=st.integers(0, 99),
)
def test_nothing_is_given_twice_and_nothing_is_lost(
    *,
    numbered: Numbered,
    users: int,
    fraction: float,
    validation: float,
    how_many: Dirichlet,
    which: Dirichlet,
    seed: int,
) -> None:
    config = FederationConfig(
        users_per_domain=users,
        fraction=fraction,
        validation=validation,
        partition=Partition(sizes=how_many, labels=which),
        at=1.0,
    )
    federation = build(numbered(260, 240), config, seed)
    for domain in federation.domains:
        clients = [client for client in federation.clients if client.domain == domain]
        given_out = [n for client in clients for n in _numbers(client.train) + _numbers(client.validation)]
        assert len(set(given_out)) == len(given_out) == round(240 * fraction)
        assert all(number < 30_000 for number in given_out)  # test images are numbered from 30,000
        assert min(len(client.train) for client in clients) >= config.min_samples
        tested = [number for client in clients for number in _numbers(client.test)]
        assert sorted(tested) == list(range(30_000, 30_040))
    assert federation.equal_sizes == (how_many == "uniform")


def test_the_seed_decides_everything(numbered: Numbered) -> None:
    config = FederationConfig(users_per_domain=3, partition="label-skew")  # type: ignore[arg-type]
    first, again, other = (build(numbered(300), config, seed) for seed in (1, 1, 2))
    for part in ("train", "validation", "test"):
        numbers = [[_numbers(getattr(c, part)) for c in federation.clients] for federation in (first, again, other)]
        assert numbers[0] == numbers[1]
        assert numbers[0] != numbers[2]


def test_no_validation_is_an_empty_part(numbered: Numbered) -> None:
    federation = build(numbered(100), FederationConfig(users_per_domain=2, fraction=1, validation=0, at=0), seed=1)
    assert [len(client.validation) for client in federation.clients] == [0, 0]
    assert [len(client.train) for client in federation.clients] == [50, 50]


def test_test_samples_limit_each_user(numbered: Numbered) -> None:
    federation = build(numbered(200), FederationConfig(users_per_domain=4, test_samples=3), seed=1)
    assert [len(client.test) for client in federation.clients] == [3] * 4


def test_label_skew_keeps_sizes_and_bends_classes(numbered: Numbered) -> None:
    skew = Partition(labels=Dirichlet(concentration=0.1))
    federation = build(numbered(1000), FederationConfig(fraction=1, validation=0, partition=skew), seed=1)
    assert [len(client.train) for client in federation.clients] == [100] * 10
    largest = torch.stack([client.train.labels.bincount(minlength=10).max() for client in federation.clients])
    assert largest.float().mean() > 30  # without skew 10 of each class


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0.0, []),
        (1.0, ["d0-0", "d0-1", "d0-2", "d1-0", "d1-1", "d1-2"]),
        (0.3, ["d0-0", "d1-0"]),  # 0.9 of 3 users rounds to 1
        ((), []),
        (("d1",), ["d1-0", "d1-1", "d1-2"]),
        (("d0-2", "d1"), ["d0-2", "d1-0", "d1-1", "d1-2"]),
        (FirstDomains(ratio=0.67, domains=1), ["d0-0", "d0-1"]),
        (FirstDomains(ratio=0.34, domains=("d1",)), ["d1-0"]),
    ],
)
def test_who_trains_adversarially(numbered: Numbered, at: object, expected: list[str]) -> None:
    config = FederationConfig(users_per_domain=3, fraction=1, at=at)  # type: ignore[arg-type]
    assert _at(build(numbered(60, 60), config, seed=1)) == expected


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0.1, r"ratio 0.1 of 3 users per domain, which rounds to none; expected at least 0.333"),
        (("d2",), r"got 'd2' in federation.at; expected a domain or user.*Did you mean .*d1"),
        (("d0", "d1-3"), r"got 'd1-3'.*Did you mean d1-"),
        (("zebra",), r"got 'zebra'.*There are d0, d1"),
        (FirstDomains(ratio=1, domains=3), "the first 3 domains; expected 1 to 2"),
        (FirstDomains(ratio=1, domains=0), "the first 0 domains; expected 1 to 2"),
        (FirstDomains(ratio=1, domains=("d0-1",)), "got 'd0-1'.*expected a domain of this federation"),
    ],
)
def test_impossible_roles_are_refused(numbered: Numbered, at: object, message: str) -> None:
    config = FederationConfig(users_per_domain=3, fraction=1, at=at)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        build(numbered(60, 60), config, seed=1)


def test_too_few_training_images_are_refused_with_numbers(numbered: Numbered) -> None:
    # 4 to train on and half held out makes 8 each, 80 for ten users; 30 % of 200 is 60, enough for 7; 80 / 200 = 0.4.
    with pytest.raises(ValueError, match="got 60 training images") as caught:
        build(numbered(300, 200), FederationConfig(), seed=1)
    for part in ("200 of d1", "expected at least 80: 8 each", "fraction to at least 0.4", "at most 7"):
        assert part in str(caught.value)


def test_advice_is_possible(numbered: Numbered) -> None:
    with pytest.raises(ValueError, match="got 2 training images") as caught:
        build(numbered(6), FederationConfig(), seed=1)
    assert "fraction to" not in str(caught.value)
    assert "users_per_domain to" not in str(caught.value)


def test_every_user_needs_a_test_image(numbered: Numbered) -> None:
    with pytest.raises(ValueError, match=r"got 9 test images in d0.*Lower users_per_domain to at most 9"):
        build(numbered(600, test=9), FederationConfig(), seed=1)


@pytest.mark.slow
@pytest.mark.skipif("FEDRBN_DATA" not in os.environ, reason="set FEDRBN_DATA to the folder that holds digits/")
def test_the_papers_federation() -> None:
    # USPS is the smallest with 7,291: 30 % are 2,187, for 10 users 218 or 219; validation takes 109 or 110 of them.
    at = FirstDomains(ratio=0.2, domains=3)
    federation = build(load("digits"), FederationConfig(at=at), seed=1)
    assert len(federation.clients) == 50
    assert {len(client.train) for client in federation.clients} == {109}
    assert _at(federation) == ["mnist-0", "mnist-1", "svhn-0", "svhn-1", "usps-0", "usps-1"]
    assert federation.image_shape == (3, 28, 28)
