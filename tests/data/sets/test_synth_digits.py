from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedrbn.data.sets.synth_digits import LABEL, brightness, contrasting, synth_digits, synthetic_pictures


def test_sizes_classes_and_parts() -> None:
    train, test = synth_digits(train=60, test=30, seed=3)
    assert train.images.shape == (60, 3, 28, 28)
    assert train.labels.bincount().tolist() == [6] * 10
    assert test.labels.bincount().tolist() == [3] * 10
    assert LABEL == "synthdigits (regenerated)"


def test_the_same_numbers_give_the_same_pictures(cache: Path) -> None:
    first, _ = synth_digits(train=20, test=10, seed=4)
    (cache / "synth-digits-20-10-4-v1.npz").unlink()
    again, _ = synth_digits(train=20, test=10, seed=4)
    other, _ = synth_digits(train=20, test=10, seed=5)
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)


def test_large_numbers_are_drawn_in_batches() -> None:
    train, _ = synth_digits(train=1010, test=10, seed=0)
    assert train.images[1000:].float().std() > 10  # the short last batch is drawn too
    assert train.labels.bincount().tolist() == [101] * 10


def test_strokes_stand_out_from_the_background() -> None:
    rng = np.random.default_rng(0)
    background = torch.from_numpy(rng.random((500, 3), dtype=np.float32))
    difference = (brightness(contrasting(background, rng)) - brightness(background)).abs()
    # Mostly the 0.45 asked for; against middle grey all sixteen draws may miss it, and the best of them is taken.
    assert float(difference.median()) > 0.45
    assert float(difference.min()) > 0.2
    # Two random colours differ by less than 0.2 about half of the time.
    assert float((brightness(background) - brightness(background.flip(0))).abs().quantile(0.4)) < 0.2


def test_pictures_are_coloured_and_varied() -> None:
    pictures = synthetic_pictures(torch.full((50,), 7), np.random.default_rng(0))
    assert float((pictures[:, 0] - pictures[:, 2]).abs().mean()) > 0.1
    assert float(pictures.std(dim=0).mean()) > 0.15
