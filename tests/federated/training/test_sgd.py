"""Local training beside plain SGD: the meta step, Free AT's noise, FedRob's affine map; by hand on tiny models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from fedrbn.config import ConfigError
from fedrbn.federated.objectives import Standard
from fedrbn.federated.training.affine import AffineMap, AffineTraining, check_memory
from fedrbn.federated.training.free import Free
from fedrbn.federated.training.meta import Meta
from fedrbn.federated.training.sgd import Batch, LocalTask
from fedrbn.nets.dual_bn import DualNet, single


def random() -> Generator:
    return torch.Generator().manual_seed(0)


def linear(weight: list[list[float]]) -> DualNet:
    """Logits W x for pixels [n, inputs]."""
    values = torch.tensor(weight)
    layer = nn.Linear(values.shape[1], values.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(values)
    return single(layer)


def weight_of(net: DualNet) -> Tensor:
    return next(net.parameters()).detach()


def batch(*pixels: float) -> Batch:
    """Images of one pixel each, of class 0."""
    return torch.tensor(pixels)[:, None], torch.zeros(len(pixels), dtype=torch.int64)


class Quadratic:
    """½ (w − a)² with a the mean pixel of the batch: its gradient is w − a."""

    def __call__(self, net: DualNet, x: Tensor, y: Tensor, generator: Generator) -> float:
        (weight,) = net.parameters()
        loss = ((weight - x.mean()) ** 2).sum() / 2
        loss.backward()
        return loss.item()


def test_the_meta_step_on_a_quadratic() -> None:
    """w = 2, inner rate ½, meta rate ¼, minima a = 0, 1 for the first pair.

    Adapt: 2 − ½ (2 − 0) = 1. Gradient there on the second batch: 1 − 1 = 0, so w stays 2, and the loss is 0.
    Second pair a = 1, 0: adapt 2 − ½ (2 − 1) = 1.5; gradient 1.5 − 0; w = 2 − ¼ · 1.5 = 1.625; loss 1.5² / 2 = 1.125.
    """
    net = linear([[2.0]])
    given = [batch(0.0), batch(1.0), batch(1.0), batch(0.0)]
    memory, loss = Meta(inner=0.5)(net, given, LocalTask(Quadratic(), 0.25, random()))
    assert weight_of(net).item() == 1.625
    assert loss == (0 + 1.125) / 2
    assert memory == {}


def test_a_batch_without_a_partner_adapts_and_trains() -> None:
    """a = 0, w = 2: adapt 2 − ½ · 2 = 1, gradient 1, w = 2 − ¼ = 1.75."""
    net = linear([[2.0]])
    Meta(inner=0.5)(net, [batch(0.0)], LocalTask(Quadratic(), 0.25, random()))
    assert weight_of(net).item() == 1.75


def test_free_at_carries_the_noise_over_replays_and_batches_and_takes_a_step_in_each() -> None:
    """Logits (0, 2x): ∂ℓ/∂x = 2 p_1 > 0 for class 0, so the noise goes up by ε and stays there, clipped to ε.

    Replay 1 sees x + 0, replay 2 and all of the next batch see x + ε.
    """
    seen: list[list[float]] = []
    net = linear([[0.0], [2.0]])
    net.network.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten().tolist()))
    free = Free(eps=0.25, replays=2)
    memory, _ = free(net, [batch(0.5, 0.25), batch(0.0)], LocalTask(Standard(), 0.0, random()))
    assert seen == [[0.5, 0.25], [0.75, 0.5], [0.25], [0.25]]
    assert memory["noise"].flatten().tolist() == [0.25, 0.25]


def test_free_at_goes_on_with_the_noise_of_the_round_before_and_grows_it_for_larger_batches() -> None:
    """The first slot has −ε; the gradient is upwards, so it goes to 0; the new slot starts at 0 and goes to ε."""
    remembered = {"noise": torch.tensor([[-0.25]])}
    free = Free(eps=0.25, replays=1)
    memory, _ = free(linear([[0.0], [2.0]]), [batch(0.5, 0.5)], LocalTask(Standard(), 0.0, random(), remembered))
    assert memory["noise"].flatten().tolist() == [0.0, 0.25]
    assert remembered["noise"].tolist() == [[-0.25]], "what was remembered is not changed"


def test_free_at_clips_pixels_to_the_box_and_not_the_noise() -> None:
    seen: list[float] = []
    net = linear([[0.0], [2.0]])
    net.network.register_forward_pre_hook(lambda _, args: seen.append(args[0].item()))
    memory, _ = Free(0.25, replays=2)(net, [batch(0.9)], LocalTask(Standard(), 0.0, random()))
    assert seen == pytest.approx([0.9, 1.0])
    assert memory["noise"].item() == 0.25


def test_each_replay_of_free_at_is_a_step_of_the_weights() -> None:
    """W = (0, 0), class 0, x = 1, ε = 0: p = (½, ½), ∇W = (p − e_0) x = (−½, ½); lr 1 gives (½, −½) after one replay.

    Then p = softmax(½, −½) = (σ(1), 1 − σ(1)), and the second replay adds (1 − σ(1)) to the first and takes it from
    the second: ½ + 0.26894 = 0.76894.
    """
    net = linear([[0.0], [0.0]])
    Free(eps=0.0, replays=2)(net, [batch(1.0)], LocalTask(Standard(), 1.0, random()))
    torch.testing.assert_close(weight_of(net), torch.tensor([[0.7689414], [-0.7689414]]))


WEIGHT = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, -1.5]])
PIXELS = np.array([[0.3, 0.6, 0.2], [0.5, 0.4, 0.7]])
LABELS = np.array([0, 1])


def by_hand(matrix: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """∇_Λ and ∇_δ of the mean cross-entropy of W (Λx + δ): g = Wᵀ (p − e_y) / n; Σ g xᵀ and Σ g."""
    logits = (PIXELS @ matrix.T + shift) @ WEIGHT.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    g = (p - np.eye(2)[LABELS]) @ WEIGHT / 2
    return g.T @ PIXELS, g.sum(0)


def test_the_gradient_of_the_affine_map_on_a_linear_model_and_the_pull_to_the_identity() -> None:
    net = linear(WEIGHT.tolist())
    x, y = torch.tensor(PIXELS, dtype=torch.float32), torch.tensor(LABELS)
    training = AffineTraining(rate=0.1, gamma=2.0, steps=1)
    up, right = by_hand(np.eye(3), np.zeros(3))
    first = training.climbed(net, AffineMap(torch.eye(3), torch.zeros(3)), x, y)
    np.testing.assert_allclose(first.matrix.numpy(), np.eye(3) + 0.1 * up, rtol=1e-5)
    np.testing.assert_allclose(first.shift.numpy(), 0.1 * right, rtol=1e-5)
    matrix, shift = first.matrix.double().numpy(), first.shift.double().numpy()
    up, right = by_hand(matrix, shift)
    second = training.climbed(net, first, x, y)
    expected = matrix + 0.1 * (up - 2.0 * (matrix - np.eye(3)))
    np.testing.assert_allclose(second.matrix.numpy(), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(second.shift.numpy(), shift + 0.1 * (right - 2.0 * shift), rtol=1e-5, atol=1e-7)
    both = AffineTraining(rate=0.1, gamma=2.0, steps=2).climbed(net, AffineMap(torch.eye(3), torch.zeros(3)), x, y)
    torch.testing.assert_close((both.matrix, both.shift), (second.matrix, second.shift))
    assert all(parameter.grad is None for parameter in net.parameters()), "climbing is not training"


def test_a_pixel_that_the_map_pushes_out_of_the_box_has_no_gradient_but_the_pull() -> None:
    """x = 1, Λ = 1, δ = ½: x' is clipped from 1.5 to 1, so ∂ℓ/∂(Λx + δ) = 0, and δ ← δ − 0.1 · 2 δ = 0.4."""
    start = AffineMap(torch.eye(1), torch.tensor([0.5]))
    found = AffineTraining(rate=0.1, gamma=2.0, steps=1).climbed(linear([[0.0], [2.0]]), start, *batch(1.0))
    assert found.shift.item() == pytest.approx(0.4)
    assert found.matrix.item() == 1.0


def test_fedrob_climbs_at_least_once() -> None:
    with pytest.raises(ConfigError, match=r"got method.affine_steps = 0; expected at least 1"):
        AffineTraining(steps=0)


def test_fedrob_starts_at_the_identity_and_remembers_the_map() -> None:
    x, y = torch.tensor(PIXELS, dtype=torch.float32), torch.tensor(LABELS)
    kept, _ = AffineTraining(0.1, gamma=0.0, steps=1)(
        linear(WEIGHT.tolist()), [(x, y)], LocalTask(Standard(), 0.0, random())
    )
    up, _ = by_hand(np.eye(3), np.zeros(3))
    np.testing.assert_allclose(kept["matrix"].numpy(), np.eye(3) + 0.1 * up, rtol=1e-5)
    again, _ = AffineTraining(0.1, gamma=0.0, steps=1)(
        linear(WEIGHT.tolist()), [(x, y)], LocalTask(Standard(), 0.0, random(), kept)
    )
    farther = by_hand(kept["matrix"].double().numpy(), kept["shift"].double().numpy())[0]
    np.testing.assert_allclose(again["matrix"].numpy(), kept["matrix"].numpy() + 0.1 * farther, rtol=1e-5)


def test_fedrobs_weights_descend_on_the_shifted_images_alone() -> None:
    """One step up from the identity makes x' = Λx + δ, none of it outside the box; then W − lr (p − e_y)ᵀ x' / n.

    The loss that is reported is that of x', too: the mean of −log p_y.
    """
    x, y = torch.tensor(PIXELS, dtype=torch.float32), torch.tensor(LABELS)
    net = linear(WEIGHT.tolist())
    training = AffineTraining(rate=0.1, gamma=1.0, steps=1)
    _, loss = training(net, [(x, y)], LocalTask(Standard(), 0.5, random()))
    up, right = by_hand(np.eye(3), np.zeros(3))
    shifted = PIXELS @ (np.eye(3) + 0.1 * up).T + 0.1 * right
    assert ((shifted > 0) & (shifted < 1)).all()
    logits = shifted @ WEIGHT.T
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = WEIGHT - 0.5 * (p - np.eye(2)[LABELS]).T @ shifted / 2
    np.testing.assert_allclose(weight_of(net).numpy(), expected, rtol=1e-5)
    assert loss == pytest.approx(-np.log(p[[0, 1], LABELS]).mean(), rel=1e-5)


def test_images_for_which_the_matrix_does_not_fit_are_refused_with_its_size() -> None:
    """3 · 256 · 256 = 196,608 numbers; its square times 4 bytes are 154,618,822,656, which is 144 GiB."""
    check_memory((3, 28, 28))
    check_memory((1, 128, 128))  # 16384² · 4 bytes are 1 GiB exactly
    with pytest.raises(ConfigError, match=r"3 × 256 × 256 .* 154,618,822,656 bytes \(144\.0 GiB\).*image_size to 73"):
        check_memory((3, 256, 256))
