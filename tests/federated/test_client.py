"""One client's local update: batches, SGD, the proximal term, what it uploads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Generator, Tensor, nn

from federated.tiny import client, network, samples
from fedrbn.attacks import PGD
from fedrbn.federated.aggregation.layout import Local, layout
from fedrbn.federated.client import batches, local_update, pixels, steps_per_epoch
from fedrbn.federated.methods import Method, fatavg, fatavg_dbn, fedrbn
from fedrbn.federated.objectives import Objective
from fedrbn.federated.protocol import Round, Train
from fedrbn.federated.training.sgd import LocalTask, Sgd, Training
from fedrbn.nets.dual_bn import Affine, DualNet, single
from fedrbn.nets.state import tensors
from fedrbn.types import Role, Tensors

ATTACK = PGD(steps=1)


def random(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def sizes(count: int, size: int, steps: int) -> list[int]:
    return [len(batch) for batch in batches(count, size, steps, random())]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (8, 4, [4, 4]),
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),  # the last batch of one joins the one before
        (5, 4, [5]),
        (3, 4, [3]),  # fewer images than one batch are one batch, not none
        (1, 4, [1]),
        (2, 2, [2]),
        (3, 2, [3]),
    ],
)
def test_an_epoch_uses_every_image_once_and_never_one_alone(count: int, size: int, expected: list[int]) -> None:
    assert steps_per_epoch(count, size) == len(expected)
    assert sizes(count, size, len(expected)) == expected
    together = torch.cat(list(batches(count, size, len(expected), random())))
    assert sorted(together.tolist()) == list(range(count))


def test_fixed_steps_go_on_into_further_epochs_and_stop_in_the_middle() -> None:
    assert sizes(10, 4, 5) == [4, 4, 2, 4, 4]
    assert sizes(3, 4, 4) == [3, 3, 3, 3]
    assert sizes(10, 4, 1) == [4]


def test_order_is_the_generators() -> None:
    def order(seed: int) -> list[int]:
        return torch.cat(list(batches(20, 4, 10, random(seed)))).tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1)[:20] != order(1)[20:], "every epoch is shuffled anew"


class Slope:
    """An objective whose gradient is 1 everywhere."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        return float(len(x))


def scalar(value: float) -> DualNet:
    net = single(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        next(net.parameters()).fill_(value)
    return net


def train(net: DualNet, training: Training, count: int, size: int, objective: Objective, lr: float = 0.5) -> float:
    """Two steps on random images; the loss."""
    order = batches(count, size, 2, random())
    made = training(net, pixels(samples(count, 0), order), LocalTask(objective, lr, random()))
    return made[1]


def test_proximal_gradient_is_mu_times_the_distance_from_the_start() -> None:
    """lr = μ = ½ from w_t = 2. Step 1: 2 − ½ (1 + ½·0) = 1.5. Step 2: 1.5 − ½ (1 + ½ (1.5 − 2)) = 1.5 − 0.375 = 1.125.

    Without the square of the norm, or with μ instead of μ/2 in the loss, the second step would differ.
    """
    net = scalar(2.0)
    train(net, Sgd(proximal=0.5), 4, 2, Slope())
    assert next(net.parameters()).item() == 1.125


def test_without_the_proximal_term_sgd_is_plain() -> None:
    net = scalar(2.0)
    loss = train(net, Sgd(), 5, 3, Slope())
    assert next(net.parameters()).item() == 1.0
    assert loss == 2.5, "the mean of the losses of batches of 3 and 2"


def test_a_loss_that_is_no_number_ends_the_update_with_a_remedy() -> None:
    class Diverged:
        def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
            return float("nan")

    with pytest.raises(FloatingPointError, match=r"loss nan at step 1; .* lower train\.lr"):
        train(scalar(1.0), Sgd(), 4, 2, Diverged())


def asked(method: Method, role: Role, **changes: object) -> tuple[DualNet, Round, Train]:
    net = method.network(network())
    names = layout(net, method.local)
    initial = {name: tensor.clone() for name, tensor in tensors(net).items()}
    shared = {name: tensor for name, tensor in initial.items() if name in names.shared}
    personal = {name: tensor for name, tensor in initial.items() if name in names.personal}
    settings = {"lr": 0.1, "batch_size": 4, "local_epochs": 1} | changes
    round_ = Round(number=0, seed=1, method=method, shared=shared, **settings)  # type: ignore[arg-type]
    return net, round_, Train("c", role.duty, personal, calibrate=False)


def noised(names: Tensors) -> set[str]:
    return {name for name in names if "noised" in name}


@pytest.mark.parametrize("method", [fedrbn(ATTACK), fatavg_dbn(ATTACK)], ids=["fedrbn", "fatavg+dbn"])
def test_only_at_users_upload_the_noised_branch(method: Method) -> None:
    net, round_, job = asked(method, Role.ST)
    st = local_update(net, client("c", Role.ST, 8, 0), round_, job)
    assert noised(st.shared) | noised(st.personal) == set()
    net, round_, job = asked(method, Role.AT)
    at = local_update(net, client("c", Role.AT, 8, 0), round_, job)
    statistics = {f"network.2.noised.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert noised(at.shared) | noised(at.personal) == statistics


def test_an_upload_holds_each_tensor_once_and_says_how_it_went() -> None:
    net, round_, job = asked(fedrbn(ATTACK), Role.AT)
    upload = local_update(net, client("c", Role.AT, 9, 0), round_, job)
    assert upload.shared.keys().isdisjoint(upload.personal)
    assert upload.shared.keys() | upload.personal.keys() == tensors(net).keys()
    assert (upload.client, upload.round, upload.samples, upload.metrics["steps"]) == ("c", 0, 9, 2)
    uploaded = upload.shared["network.1.weight"].clone()
    local_update(net, client("c", Role.AT, 9, 1), round_, job)
    assert torch.equal(upload.shared["network.1.weight"], uploaded), "the workspace is used again, the upload is not"


def test_what_the_workspace_held_before_does_not_matter() -> None:
    member = client("c", Role.ST, 8, 0)
    net, round_, job = asked(fatavg(ATTACK), Role.ST)
    first = local_update(net, member, round_, job)
    second = local_update(net, member, round_, job)
    for name, tensor in (first.shared | first.personal).items():
        assert torch.equal(tensor, (second.shared | second.personal)[name])


def test_every_client_and_every_round_shuffles_and_attacks_in_its_own_way() -> None:
    member = client("c", Role.AT, 12, 0)
    net, round_, job = asked(fedrbn(ATTACK), Role.AT)
    same = [
        local_update(net, member, round_, job),
        local_update(net, member, replace(round_, number=1), job),
        local_update(net, member, replace(round_, seed=2), job),
        local_update(net, member, round_, replace(job, client="d")),
    ]
    assert len({upload.metrics["loss"] for upload in same}) == 4


def test_epochs_and_fixed_steps() -> None:
    member = client("c", Role.ST, 8, 0)
    net, round_, job = asked(fatavg(ATTACK), Role.ST, local_epochs=3)
    assert local_update(net, member, round_, job).metrics["steps"] == 6
    net, round_, job = asked(fatavg(ATTACK), Role.ST, local_epochs=3, steps=5)
    upload = local_update(net, member, round_, job)
    assert upload.metrics["steps"] == 5
    count = upload.personal["network.2.clean.num_batches_tracked"]
    assert count == 5


def test_a_separate_affine_of_the_noised_branch_is_frozen_for_st_users_only() -> None:
    method = replace(fedrbn(ATTACK), affine=Affine.SEPARATE, local=Local.STATISTICS)
    net, round_, job = asked(method, Role.ST)
    job = replace(job, calibrate=True)
    st = local_update(net, client("c", Role.ST, 8, 0), round_, job)
    assert "network.2.noised.weight" not in st.shared
    assert torch.equal(tensors(net)["network.2.noised.weight"], round_.shared["network.2.noised.weight"])
    at = local_update(net, client("c", Role.AT, 8, 0), round_, replace(job, duty=Role.AT.duty))
    assert not torch.equal(at.shared["network.2.noised.weight"], round_.shared["network.2.noised.weight"])


def test_only_a_client_that_wants_it_has_its_training_images_turned() -> None:
    """The same batches, mirrored and rotated: another loss. Without the wish it is the same whatever the data set."""
    member = client("c", Role.ST, 8, 0)
    net, round_, job = asked(fatavg(ATTACK), Role.ST)
    losses = [local_update(net, replace(member, augment=wish), round_, job).metrics["loss"] for wish in (False, True)]
    assert losses[0] != losses[1]
    assert losses[1] == local_update(net, replace(member, augment=True), round_, job).metrics["loss"]
