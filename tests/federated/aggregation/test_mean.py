"""The weighted mean, and which tensors are averaged at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fedrbn.federated.aggregation.layout import Local, layout
from fedrbn.federated.aggregation.mean import Contribution, RoleMean, mean
from fedrbn.federated.aggregation.slack import Slack
from fedrbn.nets.dual_bn import Affine, dual, single
from fedrbn.nets.state import tensors
from fedrbn.types import Role, Tensors


def contribution(client: str, weight: float, **values: float) -> Contribution:
    return Contribution(client, {name: torch.tensor([value]) for name, value in values.items()}, weight)


def start(**values: float) -> Tensors:
    return {name: torch.tensor([value]) for name, value in values.items()}


def test_clients_weigh_by_their_samples() -> None:
    # (1·2 + 3·6 + 4·(−1)) / 8 = 16 / 8 = 2
    found = mean(
        start(w=99.0), [contribution("a", 1, w=2.0), contribution("b", 3, w=6.0), contribution("c", 4, w=-1.0)]
    )
    torch.testing.assert_close(found["w"], torch.tensor([2.0]))


def test_equal_samples_give_the_plain_mean() -> None:
    # (1 + 2 + 6) / 3 = 3
    sent = [contribution("a", 17, w=1.0), contribution("b", 17, w=2.0), contribution("c", 17, w=6.0)]
    found = mean(start(w=0.0), sent)
    torch.testing.assert_close(found["w"], torch.tensor([3.0]))


def test_a_name_that_only_some_send_is_averaged_over_those() -> None:
    # v: (1·10 + 2·40) / 3 = 30 over a and c; b's weight of 5 does not count for it. w: (1·1 + 5·1 + 2·5) / 8 = 2.
    found = mean(
        start(w=0.0, v=0.0),
        [contribution("a", 1, w=1.0, v=10.0), contribution("b", 5, w=1.0), contribution("c", 2, w=5.0, v=40.0)],
    )
    torch.testing.assert_close(found, start(w=2.0, v=30.0))


def test_a_name_that_nobody_sends_keeps_its_value() -> None:
    assert mean(start(w=7.0, v=8.0), [contribution("a", 1, w=1.0)])["v"].item() == 8.0
    assert mean(start(w=7.0), [])["w"].item() == 7.0


def test_contributions_are_not_changed_and_not_aliased() -> None:
    sent = [contribution("a", 1, w=1.0), contribution("b", 1, w=3.0)]
    found = mean(start(w=0.0), sent)
    found["w"].fill_(100)
    assert [c.tensors["w"].item() for c in sent] == [1.0, 3.0]


def watched_contributions() -> Iterator[Contribution]:
    """w = 0 … 4 of AT users with losses 0 … 4. When one is asked for, at most the one before it may be in memory."""
    alive: list[int] = []

    class Counted(dict):  # type: ignore[type-arg]
        def __del__(self) -> None:
            alive.pop()

    for i in range(5):
        assert len(alive) <= 1
        alive.append(i)
        yield Contribution(f"c{i}", Counted(w=torch.tensor([float(i)])), 1.0, Role.AT, float(i))


def test_contributions_are_folded_one_by_one() -> None:
    """When the second is asked for, the first has been dropped: memory does not grow with the number of clients."""
    assert mean(start(w=0.0), watched_contributions())["w"].item() == pytest.approx(2.0)


def reported(client: str, weight: float, value: float, loss: float | None) -> Contribution:
    return Contribution(client, start(w=value), weight, Role.ST if loss is None else Role.AT, loss)


def test_uploads_of_at_users_count_as_often_as_asked() -> None:
    """AT users a and b with 10 and 30 samples count twice, the ST user c with 40 once; only AT users send v.

    w: (2 · 10 · 1 + 2 · 30 · 2 + 40 · 6) / (20 + 60 + 40) = 380 / 120, and 310 / 80 without the factor.
    v, among AT users alone: (20 · 4 + 60 · 8) / 80 = 7, the same as without the factor.
    """
    sent = [
        Contribution("a", start(w=1.0, v=4.0), 10, Role.AT),
        Contribution("b", start(w=2.0, v=8.0), 30, Role.AT),
        Contribution("c", start(w=6.0), 40, Role.ST),
    ]
    found = RoleMean(2.0)(start(w=0.0, v=0.0), sent)
    torch.testing.assert_close(found, start(w=380 / 120, v=7.0))
    torch.testing.assert_close(mean(start(w=0.0, v=0.0), sent), start(w=310 / 80, v=7.0))


def test_slack_weighs_those_with_the_smallest_adversarial_loss_more() -> None:
    """α = ½: of three AT users with weights 1, 1, 2 the best one, b, gets 3/2 · 1, a and c get ½ · 1 and ½ · 2.

    d, an ST user, keeps its weight: (½ · 8 + 3/2 · 2 + 1 · 4 + 1 · 5) / (½ + 3/2 + 1 + 1) = 16 / 4 = 4.
    """
    sent = [
        reported("a", 1, 8.0, 0.9),
        reported("b", 1, 2.0, 0.1),
        reported("c", 2, 4.0, 0.5),
        reported("d", 1, 5.0, None),
    ]
    torch.testing.assert_close(Slack(0.5)(start(w=0.0), sent), start(w=4.0))


def test_slack_zero_is_the_mean_and_a_name_nobody_sends_keeps_its_value() -> None:
    sent = [reported("a", 1, 8.0, 0.9), reported("b", 3, 2.0, 0.1)]
    before = start(w=0.0, v=7.0)
    assert Slack(0.0)(before, sent) == mean(before, sent)
    assert Slack()(before, [])["w"].item() == 0.0


@pytest.mark.parametrize(
    ("share", "losses", "factors"),
    [
        (0.5, [3.0, 1.0, 2.0, 4.0], [0.75, 1.25, 1.25, 0.75]),
        (0.2, [3.0, 1.0, 2.0, 4.0], [0.75, 1.25, 0.75, 0.75]),  # 0.8 of a client: one
        (0.2, [1.0, 1.0], [1.25, 0.75]),  # a tie: the earlier client
        (0.2, [1.0], [1.0]),
        (0.2, [None, None], [1.0, 1.0]),
        (0.2, [None, 2.0, 1.0], [1.0, 0.75, 1.25]),
        (0.2, [float(i) for i in range(10)], [1.25] * 2 + [0.75] * 8),
        (0.6, [2.0, 1.0, 3.0, 5.0, 4.0], [1.25, 1.25, 1.25, 0.75, 0.75]),
    ],
)
def test_slack_ranks_at_users_only(share: float, losses: list[float | None], factors: list[float]) -> None:
    assert Slack(0.25, share).factors(losses) == factors


def test_slack_is_that_of_the_release_by_default() -> None:
    """1 of 5 clients weighs 1.4 times as much as each of the others: 1.4 / 5.4 against 1 / 5.4."""
    factors = Slack().factors([5.0, 4.0, 1.0, 2.0, 3.0])
    assert [factor / sum(factors) for factor in factors] == pytest.approx([w / 5.4 for w in (1, 1, 1.4, 1, 1)])


def test_slack_drops_each_upload_before_the_next_arrives() -> None:
    # factors 7/6, 5/6, 5/6, 5/6, 5/6 of 0 … 4: (5/6) · (1 + 2 + 3 + 4) / (27/6) = 50 / 27
    assert Slack(1 / 6)(start(w=0.0), watched_contributions())["w"].item() == pytest.approx(50 / 27)


@pytest.mark.parametrize("alpha", [-0.1, 1.0])
def test_slack_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="got slack"):
        Slack(alpha)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_slack_for_nobody_or_everybody_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="got slack share"):
        Slack(share=share)


def network() -> nn.Module:
    """A batch norm whose name says nothing (as in torchvision's downsample.1), and a `bn` that is no batch norm."""
    return nn.Sequential(
        OrderedDict(bn=nn.Linear(2, 2), downsample=nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3)))
    )


WEIGHTS = {"network.bn.weight", "network.bn.bias", "network.downsample.0.weight"}


def norm(branch: str, *parts: str) -> set[str]:
    return {f"network.downsample.1.{branch}.{part}" for part in parts}


STATISTICS = ("running_mean", "running_var")
AFFINE = ("weight", "bias")
COUNT = ("num_batches_tracked",)


@pytest.mark.parametrize(
    ("local", "shared"),
    [
        (Local.NOTHING, WEIGHTS | norm("clean", *AFFINE, *STATISTICS) | norm("noised", *STATISTICS)),
        (Local.STATISTICS, WEIGHTS | norm("clean", *AFFINE)),
        (Local.BATCH_NORM, WEIGHTS),
        (Local.EVERYTHING, set()),
    ],
)
def test_what_is_shared_with_one_affine(local: Local, shared: set[str]) -> None:
    net = dual(network())
    found = layout(net, local)
    assert found.shared == shared
    assert found.personal == tensors(net).keys() - shared
    assert found.noised == norm("noised", *STATISTICS, *COUNT)


@pytest.mark.parametrize(
    ("local", "shared"),
    [
        (Local.NOTHING, WEIGHTS | norm("clean", *AFFINE, *STATISTICS) | norm("noised", *AFFINE, *STATISTICS)),
        (Local.STATISTICS, WEIGHTS | norm("clean", *AFFINE) | norm("noised", *AFFINE)),
        (Local.BATCH_NORM, WEIGHTS),
        (Local.EVERYTHING, set()),
    ],
)
def test_what_is_shared_with_separate_affines(local: Local, shared: set[str]) -> None:
    found = layout(dual(network(), Affine.SEPARATE), local)
    assert found.shared == shared
    assert found.noised == norm("noised", *STATISTICS, *COUNT, *AFFINE)


@pytest.mark.parametrize("local", Local)
def test_counts_of_batches_are_never_averaged(local: Local) -> None:
    found = layout(dual(network()), local)
    assert norm("clean", *COUNT) | norm("noised", *COUNT) <= found.personal


def test_a_network_with_one_set_of_statistics_has_nothing_noised() -> None:
    found = layout(single(network()), Local.NOTHING)
    assert found.noised == frozenset()
    assert found.shared == WEIGHTS | norm("clean", *AFFINE, *STATISTICS)
