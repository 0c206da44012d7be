"""What is attacked is what predicts; answers come per sample and in order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn

from fedrbn.attacks import PGD, Logits, Oblivious, Untargeted
from fedrbn.data.samples import Samples
from fedrbn.errors import AttackError
from fedrbn.evaluation.accuracy import (
    CONFIDENT,
    Accuracy,
    PerInput,
    attack_through,
    deployment_name,
    logits_of,
    other_views,
)
from fedrbn.nets.dual_bn import DualNet, dual, single
from fedrbn.nets.state import load
from fedrbn.types import Branch, Stats


def random() -> Generator:
    return torch.Generator().manual_seed(0)


def brightness() -> nn.Sequential:
    """Class 1 iff the mean pixel is above the running mean of batch norm: logits ∓ Σ (x − μ)."""
    net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        net[2].weight.copy_(torch.tensor([[-1.0] * 4, [1.0] * 4]))
        net[1].running_mean.fill_(0.5)
    return net


@pytest.fixture
def net() -> DualNet:
    """BN_c: class 1 iff brighter than 0.5. BN_a: class 0 for everything, because nothing is brighter than 1."""
    made = dual(brightness()).eval()
    load(made, {"network.1.noised.running_mean": torch.ones(4)})
    return made


def grey(levels: list[int], labels: list[int]) -> Samples:
    """Images of one level (0 to 255) each."""
    images = torch.tensor(levels, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2).contiguous()
    return Samples(images, torch.tensor(labels))


FOUR = grey([230, 25, 230, 25], [1, 1, 0, 0])  # BN_c says 1, 0, 1, 0; BN_a says 0, 0, 0, 0


def test_each_branch_gives_its_own_answers_in_the_order_of_the_samples(net: DualNet) -> None:
    assert Accuracy(Branch.CLEAN)(net, FOUR, random())["clean@clean"].tolist() == [True, False, False, True]
    assert Accuracy(Branch.NOISED)(net, FOUR, random())["clean@noised"].tolist() == [False, False, True, True]


def test_order_and_number_hold_over_several_batches(net: DualNet) -> None:
    levels = [230 if i % 3 else 25 for i in range(300)]
    found = Accuracy(Branch.CLEAN)(net, grey(levels, [1] * 300), random())["clean@clean"]
    assert found.tolist() == [i % 3 != 0 for i in range(300)]


class Noted:
    """An attack that changes nothing and writes down what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[float], list[list[float]]]] = []

    def __call__(self, logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
        self.seen.append((x[:, 0, 0, 0].tolist(), logits(x).tolist()))
        return x


@pytest.mark.parametrize("deployment", [Branch.CLEAN, Branch.NOISED, CONFIDENT], ids=deployment_name)
def test_the_attack_sees_the_network_that_predicts_and_only_samples_that_are_right(
    net: DualNet, deployment: Branch | PerInput
) -> None:
    attack = Noted()
    answers = Accuracy(deployment, "noted", attack)(net, FOUR, random())
    right = answers[f"clean@{deployment_name(deployment)}"]
    x, _ = FOUR.pixels(right)
    ((shown, logits),) = attack.seen
    assert shown == x[:, 0, 0, 0].tolist()
    assert logits == logits_of(net, deployment)(x).tolist()


def inverted(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """Far outside of any ball: bright becomes dark."""
    return 1 - x


RETURNED: dict[str, Callable[[Tensor], object]] = {
    "one image for all": lambda x: x[:1],
    "no image": lambda x: x[:0],
    "twice as many": lambda x: torch.cat([x, x]),
    "one channel too many": lambda x: torch.cat([x, x], dim=1),
    "flat": lambda x: x.flatten(1),
    "other numbers": lambda x: x.double(),
    "bytes": lambda x: (255 * x).to(torch.uint8),
    "nothing": lambda x: None,
    "a pair": lambda x: (x, True),
    "an array": lambda x: x.numpy(),
    "a list": lambda x: x.tolist(),
}


@pytest.mark.parametrize("kind", RETURNED)
@pytest.mark.parametrize("adaptive", [False, True])
def test_an_attack_that_does_not_return_an_image_for_each_is_refused(net: DualNet, kind: str, adaptive: bool) -> None:
    def attack(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
        return RETURNED[kind](x)  # type: ignore[return-value]

    with pytest.raises(
        AttackError,
        match=r"got .* from the attack; expected pixels \[2, 1, 2, 2\] of torch.float32",
    ):
        Accuracy(Branch.CLEAN, "a", attack, adaptive)(net, FOUR, random())


def test_a_sample_that_is_wrong_without_an_attack_is_wrong_under_one(net: DualNet) -> None:
    """Samples 1 and 2 would be right if they were inverted; 0 and 3 are right before and wrong after."""
    answers = Accuracy(Branch.CLEAN, "inverted", inverted)(net, FOUR, random())
    assert answers["clean@clean"].tolist() == [True, False, False, True]
    assert answers["inverted@clean"].tolist() == [False] * 4


def test_common_corruptions_are_other_images_not_an_adversary(net: DualNet) -> None:
    corruption = Oblivious(lambda x, generator: 1 - x)
    answers = Accuracy(Branch.CLEAN, "negative", corruption)(net, FOUR, random())
    assert answers["negative@clean"].tolist() == [False, True, True, False]


def test_pgd_moves_samples_across_the_border_if_they_are_near(net: DualNet) -> None:
    """BN_c's border is at 0.5 = 127.5: levels 140 and 200 are 0.049 and 0.284 above it; ε is 0.1."""
    attack = Untargeted(PGD(eps=0.1, steps=3, step_size=0.05))
    answers = Accuracy(Branch.CLEAN, "pgd", attack)(net, grey([140, 200], [1, 1]), random())
    assert answers["clean@clean"].tolist() == [True, True]
    assert answers["pgd@clean"].tolist() == [False, True]


def through_noised_only(logits: Logits, x: Tensor, y: Tensor, generator: Generator) -> Tensor:
    """Inverts the image if what it sees calls it class 0, as BN_a does with everything."""
    return torch.where((logits(x).argmax(1) == 0)[:, None, None, None], 1 - x, x)


def test_an_adaptive_adversary_also_looks_through_the_other_branch(net: DualNet) -> None:
    """On bright images of class 1, BN_c shows this attack nothing; BN_a makes it darken them, and BN_c falls."""
    bright = grey([230, 250], [1, 1])
    answers = Accuracy(Branch.CLEAN, "a", through_noised_only, adaptive=True)(net, bright, random())
    assert answers["a@clean"].tolist() == [True, True]
    assert answers["a@clean adaptive"].tolist() == [False, False]
    assert "a@clean adaptive" not in Accuracy(Branch.CLEAN, "a", through_noised_only)(net, bright, random())


def test_adaptive_is_never_above_the_plain_attack(net: DualNet) -> None:
    attack = Untargeted(PGD(eps=0.05, steps=2, step_size=0.03))
    samples = grey(list(range(100, 160)), [1] * 60)
    answers = Accuracy(Branch.CLEAN, "pgd", attack, adaptive=True)(net, samples, random())
    assert (answers["pgd@clean adaptive"] <= answers["pgd@clean"]).all()
    assert (answers["pgd@clean"] <= answers["clean@clean"]).all()


def test_where_an_adaptive_adversary_looks(net: DualNet) -> None:
    both = (Branch.CLEAN, Branch.NOISED)
    assert other_views(net, Branch.CLEAN) == ((Branch.NOISED,), both)
    assert other_views(net, Branch.NOISED) == ((Branch.CLEAN,), both)
    assert other_views(net, CONFIDENT) == ((Branch.CLEAN,), (Branch.NOISED,), both)
    assert other_views(single(brightness()), Branch.CLEAN) == ()


def test_an_attack_through_several_views_climbs_the_mean_of_their_losses(net: DualNet) -> None:
    seen = []

    def noted(loss, x: Tensor, generator: Generator) -> Tensor:  # type: ignore[no-untyped-def]
        seen.append(loss(x))
        return x

    x, y = FOUR.pixels(slice(None))
    views = [logits_of(net, branch) for branch in Branch]
    attack_through(Untargeted(noted), views, x, y, random())
    each = [nn.functional.cross_entropy(net(x, branch), y, reduction="none") for branch in Branch]
    torch.testing.assert_close(seen[0], (each[0] + each[1]) / 2)


def test_the_more_confident_branch_predicts(net: DualNet) -> None:
    """|Σ (x − μ)| is the margin. Level 255: BN_c 2, BN_a 0, so BN_c decides (1). Level 127: BN_c ~0, BN_a ~2 (0)."""
    samples = grey([255, 127], [1, 0])
    assert Accuracy(CONFIDENT)(net, samples, random())["clean@confident"].tolist() == [True, True]


def test_a_limit_uses_the_first_samples_and_says_so(net: DualNet) -> None:
    answers = Accuracy(Branch.CLEAN, "slow", Noted(), limit=3)(net, FOUR, random())
    assert {name: value.tolist() for name, value in answers.items()} == {
        "clean for slow@clean": [True, False, False],
        "slow@clean": [True, False, False],
    }


def test_no_samples_no_answers(net: DualNet) -> None:
    nothing = FOUR.take(torch.zeros(0, dtype=torch.int64))
    attack = Untargeted(PGD())
    for name, value in Accuracy(Branch.NOISED, "pgd", attack, adaptive=True)(net, nothing, random()).items():
        assert value.shape == (0,), name
        assert value.dtype == torch.bool, name


def test_evaluation_leaves_the_network_as_it_was_and_predicts_without_autograd(net: DualNet) -> None:
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes = []
    net.network.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    Accuracy(Branch.CLEAN, "noted", Noted())(net, FOUR, random())
    assert modes[0] is False
    assert modes[-1] is False
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_question_has_the_same_text_in_every_process() -> None:
    """Its random numbers come from this text, and a function's own text holds an address in memory."""
    question = Accuracy(CONFIDENT, "mine:attack", inverted, adaptive=True)
    assert "0x" not in str(question)
    assert str(question) != str(Accuracy(CONFIDENT, "other:attack", inverted, adaptive=True))
    assert str(question) != str(Accuracy(Branch.CLEAN, "mine:attack", inverted, adaptive=True))


def test_logits_use_frozen_statistics(net: DualNet) -> None:
    x, _ = FOUR.pixels(slice(None))
    assert torch.equal(logits_of(net.train(), Branch.CLEAN)(x), net(x, Branch.CLEAN, Stats.FROZEN))
    assert net.state_dict()["network.1.clean.num_batches_tracked"] == 0
