"""What a run needs of memory: counted by hand for a small network, refused where there is less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedrbn
from fedrbn import config
from fedrbn.data.samples import Client, Federation, Samples
from fedrbn.errors import HardwareError
from fedrbn.federated import memory_need
from fedrbn.federated.assemble import assemble
from fedrbn.nets.dual_bn import dual
from fedrbn.types import Role

GIB = 2**30


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 2))


def test_activations_of_one_image() -> None:
    # Kept for the backward pass, in float32: the image for the convolution (3 · 8 · 8), its output for batch norm
    # (4 · 6 · 6), that of batch norm for the linear layer (4 · 6 · 6); and for both images, mean and 1/σ of 4 channels.
    assert memory_need.activations(dual(network()), (3, 8, 8)) == 4 * (192 + 144 + 144) + 4 * 2 * 4 // 2


def test_copies_of_the_weights() -> None:
    assert memory_need.of_weights(100, workers=1) == 1500  # eleven on the server, four for the worker
    assert memory_need.of_weights(100, workers=3) == 2300


def test_a_run_is_the_sum_of_its_parts() -> None:
    samples = Samples(torch.zeros(20, 3, 8, 8, dtype=torch.uint8), torch.arange(20) % 2)
    client = Client("a-0", "a", Role.AT, samples, samples, samples)
    needed = memory_need.of_run(
        dual(network()), Federation((client,), ("a",), {"a": "a"}, ("x", "y"), True), 16, workers=1
    )
    assert needed.images == 3 * 20 * (192 + 8)
    assert needed.activations == 2 * 32 * 1936  # 16 clean and 16 attacked images are more than the 20 of the test
    # The network has 108 + 4 numbers of the convolution, scale and shift of 4 channels, two sets of their means and
    # variances, 288 + 2 of the last layer, and two counters of 8 bytes. There are 11 + 4 copies of them.
    assert needed.weights == 15 * (4 * (112 + 8 + 16 + 290) + 2 * 8)
    assert needed.processes == (110 + 165) * 2**20
    assert needed.total == needed.weights + needed.activations + needed.images + needed.processes


def test_an_evaluation_joins_the_images_of_all_clients() -> None:
    samples = Samples(torch.zeros(50, 3, 8, 8, dtype=torch.uint8), torch.arange(50) % 2)
    clients = tuple(Client(f"a-{i}", "a", Role.AT, samples, samples, samples) for i in range(3))
    federation = Federation(clients, ("a",), {"a": "a"}, ("x", "y"), True)
    needed = memory_need.of_run(dual(network()), federation, 16, workers=2)
    # Of 150 images, 128 go in one pass, in each of two workers: more than the 32 of a step. Then there are fewer copies
    # of the 1,720 bytes of the network: 4 on the server and 2 for each worker.
    assert needed.activations == 2 * 2 * 128 * 1936
    assert needed.weights == 8 * 1720
    assert needed.processes == (110 + 3 * 165) * 2**20


def test_a_network_that_cannot_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_need, "available_memory", lambda: GIB)
    experiment = config.make(
        {"data": {"image_size": 64, "domains": ["plain"]}, "model": {"width": 1.0}, "run": {"workers": 2}}
    )
    message = r"network 'digits' for images of 64 x 64.*needs about \d+\.\d GiB.*most the 1.0 GiB.*resnet18"
    with pytest.raises(HardwareError, match=message):
        assemble(experiment)


def test_a_run_that_cannot_fit_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: object
) -> None:
    monkeypatch.setattr(memory_need, "available_memory", lambda: 100 * 2**20)
    with pytest.raises(
        HardwareError, match=r"28 x 28 pixels, train.batch_size = 32 and 1 worker.*lower data.image_size"
    ):
        fedrbn.run(tiny(), tmp_path / "run")  # type: ignore[operator]
    assert not (tmp_path / "run").exists()


def test_where_the_system_does_not_say_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_need, "available_memory", lambda: None)
    memory_need.ensure_fits(10**15, "all", "")


def test_for_people() -> None:
    assert memory_need.gigabytes(3 * GIB // 2) == "1.5 GiB"
    assert memory_need.gigabytes(300 * 2**20) == "300 MiB"
