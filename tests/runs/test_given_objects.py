"""A network and data passed as Python objects, without a name in any config."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedrbn
from fedrbn import Branch, DataSet, Domain, Role, Samples
from fedrbn.data.samples import Client, Federation


def samples(count: int, seed: int) -> Samples:
    """Images whose left or right half is bright."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    images = torch.randint(0, 100, (count, 3, 8, 8), generator=random)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, :, 4 * label : 4 * label + 4] += 150
    return Samples(images.to(torch.uint8), labels)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


SETTINGS = {
    "federation": {"users_per_domain": 2, "at": 0.5, "fraction": 1.0, "validation": 0.25},
    "train": {"rounds": 2, "lr": 0.1, "batch_size": 8},
    "attack": {"steps": 2},
    "run": {"workers": 1},
}


def test_objects_are_trained_evaluated_and_loaded(tmp_path: Path) -> None:
    data = DataSet("halves", (Domain("one", samples(32, 1), samples(8, 2), "one"),), ("left", "right"))
    own = network()
    before = [parameter.detach().clone() for parameter in own.parameters()]
    record = fedrbn.run(fedrbn.make(SETTINGS), tmp_path / "run", network=own, data=data)
    assert record["data"] == "(given in Python)"
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), before, strict=True)), "the object is not changed"
    assert fedrbn.evaluate(tmp_path / "run", network=own, data=data)["mean"] == record["mean"]
    trained = fedrbn.load(tmp_path / "run", own)
    pixels, _ = data.domains[0].test.pixels(slice(None))
    assert torch.equal(trained.client("one-1")(pixels), trained.dual_client("one-1")(pixels, Branch.NOISED))


def test_a_network_without_batch_norm_is_trained_resumed_evaluated_and_loaded(tmp_path: Path) -> None:
    """Its clients have nothing of their own; what was said of them is remembered all the same."""
    data = DataSet("halves", (Domain("one", samples(32, 1), samples(8, 2), "one"),), ("left", "right"))
    experiment = fedrbn.make({**SETTINGS, "method": {"name": "fatavg"}})
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2))
    record = fedrbn.run(experiment, tmp_path / "run", network=own, data=data)
    (tmp_path / "run" / "evaluations.jsonl").unlink()
    assert fedrbn.resume(tmp_path / "run", network=own, data=data)["mean"] == record["mean"]
    assert fedrbn.evaluate(tmp_path / "run", network=own, data=data)["mean"] == record["mean"]
    assert fedrbn.load(tmp_path / "run", own).client("one-1")(torch.zeros(1, 3, 8, 8)).shape == (1, 2)


def test_without_the_objects_the_remedy_is_said(tmp_path: Path) -> None:
    data = DataSet("halves", (Domain("one", samples(32, 1), samples(8, 2), "one"),), ("left", "right"))
    fedrbn.run(fedrbn.make(SETTINGS), tmp_path / "run", network=network(), data=data)
    with pytest.raises(ValueError, match=r"whose network was passed as a Python object.* Pass network=…"):
        fedrbn.load(tmp_path / "run")
    with pytest.raises(ValueError, match=r"whose data was passed as a Python object.* Pass data=…"):
        fedrbn.evaluate(tmp_path / "run", network=network())


def test_a_federation_of_my_own_clients(tmp_path: Path) -> None:
    clients = tuple(
        Client(f"site-{i}", "site", Role.AT if i == 0 else Role.ST, samples(16, i), samples(4, 9), samples(8, 10 + i))
        for i in range(3)
    )
    federation = Federation(clients, ("site",), {"site": "site"}, ("left", "right"), equal_sizes=True)
    settings = {section: values for section, values in SETTINGS.items() if section != "federation"}
    record = fedrbn.run(fedrbn.make(settings), tmp_path / "run", network=network(), data=federation)
    assert {user: row["role"] for user, row in record["users"].items()} == {
        "site-0": "AT",
        "site-1": "ST",
        "site-2": "ST",
    }
