from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from fedrbn.data.samples import DataSet
from fedrbn.data.sets.digits_mini import SEED, VERSION, digits_mini, handwritten
from fedrbn.data.train_test import stratified


def test_five_domains_of_ten_classes(mini: DataSet) -> None:
    assert [domain.name for domain in mini.domains] == ["plain", "pen", "texture", "synthetic", "street"]
    for domain in mini.domains:
        assert domain.train.images.shape == (1347, 3, 28, 28)
        assert domain.test.images.shape == (450, 3, 28, 28)
        assert int(domain.train.labels.bincount(minlength=10).min()) > 120
        assert int(domain.test.labels.bincount(minlength=10).min()) > 40


def test_generation_is_deterministic(mini: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRBN_CACHE", str(tmp_path))
    for first, again in zip(mini.domains, digits_mini().domains, strict=True):
        assert torch.equal(first.train.images, again.train.images)
        assert torch.equal(first.test.images, again.test.images)
        assert torch.equal(first.test.labels, again.test.labels)


def test_the_cache_spares_the_drawing(mini: DataSet, cache: Path) -> None:
    assert (cache / f"digits-mini-street-v{VERSION}.npz").exists()
    start = time.process_time()
    digits_mini()
    assert time.process_time() - start < 1


def test_no_handwritten_digit_is_in_both_parts() -> None:
    labels = handwritten().labels.numpy()
    train, test = stratified(labels, test=0.25, seed=SEED)
    assert sorted([*train, *test]) == list(range(1797))


def test_handwritten_domains_share_the_split(mini: DataSet) -> None:
    # The same digits in the same order: labels agree, and ink falls where the plain digit is bright.
    plain, pen, texture = mini.domains[:3]
    for other in (pen, texture):
        assert torch.equal(plain.train.labels, other.train.labels)
        assert torch.equal(plain.test.labels, other.test.labels)
    bright, dark = plain.test.images.float().mean(1).flatten(1), 255 - pen.test.images.float().mean(1).flatten(1)
    similarity = torch.nn.functional.cosine_similarity(bright - bright.mean(1, True), dark - dark.mean(1, True))
    assert float(similarity.mean()) > 0.6


def test_domains_look_different(mini: DataSet) -> None:
    pixels = {domain.name: domain.train.images.float() / 255 for domain in mini.domains}
    brightness = {name: float(images.mean()) for name, images in pixels.items()}
    colourfulness = {name: float(images.std(dim=1).mean()) for name, images in pixels.items()}
    assert brightness["plain"] < 0.3
    assert brightness["pen"] > 0.6
    assert colourfulness["plain"] == 0
    assert max(colourfulness["pen"], colourfulness["street"]) < 0.12
    assert min(colourfulness["synthetic"], colourfulness["texture"]) > 0.15


def test_another_size(mini: DataSet) -> None:
    larger = digits_mini(image_size=32)
    assert larger.domains[1].train.images.shape == (1347, 3, 32, 32)
    assert torch.equal(larger.domains[1].train.labels, mini.domains[1].train.labels)


def _block(channels: int, width: int) -> torch.nn.Module:
    convolution = torch.nn.Conv2d(channels, width, 3, padding=1)
    return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(width), torch.nn.ReLU(), torch.nn.MaxPool2d(2))


@pytest.mark.slow
def test_a_small_network_learns_every_domain(mini: DataSet) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = [torch.nn.Flatten(), torch.nn.Linear(64 * 9, 10)]
        net = torch.nn.Sequential(_block(3, 16), _block(16, 32), _block(32, 64), *head)
        optimizer = torch.optim.Adam(net.parameters(), 2e-3)
        images = torch.cat([domain.train.pixels(slice(None))[0] for domain in mini.domains])
        labels = torch.cat([domain.train.labels for domain in mini.domains])
        for _ in range(4):
            for rows in torch.randperm(len(labels)).split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
                optimizer.step()
    net.eval()
    for domain in mini.domains:
        pixels, truth = domain.test.pixels(slice(None))
        with torch.no_grad():
            accuracy = float((net(pixels).argmax(1) == truth).float().mean())
        assert accuracy > 0.85, domain.name
