from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from fedrbn.attacks.local_search import LocalSearch

if TYPE_CHECKING:
    from tests.attacks.conftest import Trained


def seed(number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def linear(weights: list[float], threshold: float) -> Callable[[Tensor], Tensor]:
    """A classifier of images of one row: class 0 as long as w·x exceeds the threshold, else class 1."""
    w = torch.tensor(weights, dtype=torch.float64)

    def logits(x: Tensor) -> Tensor:
        score = x[:, 0, 0] @ w - threshold
        return torch.stack([score, torch.zeros_like(score)], 1)

    return logits


# Four pixels of 0.9, weights 1, 2, 3, 4: w·x = 9. A change with r = 1.5 takes 0.9 (v = 0.4 → 0.6 → wrapped −0.4) to
# 0.1, and 0.1 back to 0.9. One pixel is changed per round; in the first round all are candidates:
#   round 1 changes pixel 3, the one of largest drop: w·x = 9 − 4 · 0.8 = 5.8
#   round 2, radius 1, has candidates 2 and 3: pixel 2 drops by 2.4 to 3.4, pixel 3 would rise back
#   round 2, radius 0, has candidate 3 only, and turns it back: w·x = 9
#   round 2 without accumulation chooses between 2 and 3 on the clean image: pixel 3 again, 5.8
STEEP = LocalSearch(rounds=1, trial="change", radius=1, pixels=1, first=1.0)
ROW = torch.full((1, 1, 1, 4), 0.9, dtype=torch.float64)


@pytest.mark.parametrize(
    ("attack", "threshold", "expected"),
    [
        (STEEP, 5.9, (0.9, 0.9, 0.9, 0.1)),
        (STEEP, 5.7, (0.9, 0.9, 0.9, 0.9)),
        (replace(STEEP, rounds=2), 3.5, (0.9, 0.9, 0.1, 0.1)),
        (replace(STEEP, rounds=2, radius=0), 3.5, (0.9, 0.9, 0.9, 0.9)),
        (replace(STEEP, rounds=2, accumulate=False), 3.5, (0.9, 0.9, 0.9, 0.9)),
        (replace(STEEP, pixels=2), 3.5, (0.9, 0.9, 0.1, 0.1)),
        (replace(STEEP, pixels=9), 1.05, (0.1, 0.1, 0.1, 0.1)),
    ],
    ids=["one", "withstands", "two rounds", "radius 0", "no accumulation", "two at once", "all at once"],
)
def test_a_search_by_hand(attack: LocalSearch, threshold: float, expected: tuple[float, ...]) -> None:
    logits = linear([1, 2, 3, 4], threshold)
    found = attack(logits, ROW, torch.tensor([0]), seed())
    torch.testing.assert_close(found[0, 0, 0], torch.tensor(expected, dtype=torch.float64))


def test_the_published_trial_saturates_and_the_change_follows() -> None:
    # x = (0.6, 0.6, 0.2), w = (−1, −2, 1), so w·x = −1.6. Trials push 0.6 to 1 and 0.2 to 0: drops 0.4, 0.8, 0.2.
    # Pixel 1 wins; its change is v = 0.1 → 0.15, pixel 0.65: w·x = −1.7.
    x = torch.tensor([[[[0.6, 0.6, 0.2]]]], dtype=torch.float64)
    found = replace(STEEP, trial="saturate")(linear([-1, -2, 1], -1.65), x, torch.tensor([0]), seed())
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([0.6, 0.65, 0.2], dtype=torch.float64))


def test_a_pixel_changes_in_all_its_channels() -> None:
    x = torch.tensor([0.9, 0.2, 0.5], dtype=torch.float64).reshape(1, 3, 1, 1)

    def logits(pixels: Tensor) -> Tensor:
        score = pixels[:, 0, 0, 0] - 0.5
        return torch.stack([score, -score], 1)

    # v = (0.4, −0.3, 0) · 1.5 = (0.6, −0.45, 0) → (−0.4, −0.45, 0)
    found = replace(STEEP, radius=0)(logits, x, torch.tensor([0]), seed())
    torch.testing.assert_close(found.flatten(), torch.tensor([0.1, 0.05, 0.5], dtype=torch.float64))


def test_success_is_when_the_label_leaves_the_top_k() -> None:
    # Pixel 0 lowers the true class below class 1, but it stays second of three.
    x = torch.full((1, 1, 1, 1), 0.9, dtype=torch.float64)

    def logits(pixels: Tensor) -> Tensor:
        score = pixels[:, 0, 0, 0]
        return torch.stack([score, torch.full_like(score, 0.5), torch.zeros_like(score)], 1)

    fooled = replace(STEEP, top=1)(logits, x, torch.tensor([0]), seed())
    torch.testing.assert_close(fooled, torch.full_like(x, 0.1))
    assert torch.equal(replace(STEEP, top=2)(logits, x, torch.tensor([0]), seed()), x)


@pytest.mark.parametrize("trial", ["saturate", "change"])
@pytest.mark.parametrize("accumulate", [True, False])
def test_fools_a_network_with_few_pixels(trained: Trained, trial: str, accumulate: bool) -> None:
    net, x, y = trained.net, trained.x[:100], trained.y[:100]
    attack = LocalSearch(rounds=4, radius=2, pixels=3, accumulate=accumulate, trial=trial)  # type: ignore[arg-type]
    with torch.inference_mode():
        found = attack(net, x, y, seed())
        right, robust = net(x).argmax(1) == y, net(found).argmax(1) == y
    assert torch.equal(found, attack(net, x, y, seed()))
    assert found.min() >= 0
    assert found.max() <= 1
    changed = (found != x).any(1).flatten(1).sum(1)
    assert changed.max() <= 3 * (4 if accumulate else 1)
    assert torch.equal(changed > 0, right & ~robust), "only successes are changed"
    assert robust.sum() < right.sum()


def test_accumulating_and_trying_the_change_itself_are_stronger(trained: Trained) -> None:
    def robust(attack: LocalSearch) -> int:
        found = attack(trained.net, trained.x[:100], trained.y[:100], seed())
        return int((trained.net(found).argmax(1) == trained.y[:100]).sum())

    published = LocalSearch(rounds=4, radius=2, pixels=3)
    assert robust(replace(published, trial="change")) < robust(published)
    assert robust(published) < robust(replace(published, accumulate=False))


def test_memory_and_queries_are_bounded(trained: Trained) -> None:
    sizes = []

    def logits(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return trained.net(x)

    x, y = trained.x[:20], trained.y[:20]
    found = LocalSearch(rounds=3, candidates=10, chunk=32)(logits, x, y, seed())
    assert max(sizes) == 32
    assert sum(sizes) <= 20 + 3 * 20 * (10 + 1)
    assert torch.equal(found, LocalSearch(rounds=3, candidates=10, chunk=7)(trained.net, x, y, seed()))


def test_misclassified_images_and_empty_batches_come_back_as_they_are(trained: Trained) -> None:
    wrong = (trained.y + 1) % 10
    right = trained.net(trained.x).argmax(1) == wrong
    found = LocalSearch(rounds=1)(trained.net, trained.x, wrong, seed())
    assert torch.equal(found[~right], trained.x[~right])
    assert LocalSearch()(trained.net, trained.x[:0], trained.y[:0], seed()).shape == (0, 1, 8, 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": 0},
        {"r": 0.5},
        {"r": 2.5},
        {"trial": "flip"},
        {"radius": -1},
        {"pixels": 0},
        {"top": 0},
        {"first": 0.0},
        {"candidates": 0},
        {"chunk": 0},
    ],
    ids=str,
)
def test_refuses_settings_that_make_no_sense(settings: dict[str, object]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=rf"got {name} '?{value}'?; expected .* Change this setting"):
        LocalSearch(**settings)  # type: ignore[arg-type]


def test_refuses_what_is_no_image() -> None:
    with pytest.raises(ValueError, match=r"got pixels of shape \(2, 64\)"):
        LocalSearch()(lambda x: x, torch.zeros(2, 64), torch.zeros(2), seed())
