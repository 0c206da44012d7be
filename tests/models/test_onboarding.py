from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import fedrbn
from fedrbn import data
from fedrbn.cli import app
from fedrbn.config import Experiment
from fedrbn.data.samples import DataSet
from fedrbn.errors import OnboardingError
from fedrbn.federated import assemble
from fedrbn.federated.donors import Guard
from fedrbn.federated.propagation import propagate
from fedrbn.federated.server import donors
from fedrbn.models import model_file
from fedrbn.models.newcomer_data import newcomer_data, some
from fedrbn.models.onboarding import calibrate, compare, measure_clean_statistics, onboard
from fedrbn.nets.dual_bn import dual
from fedrbn.nets.state import tensors
from fedrbn.runs.load import Trained
from fedrbn.types import Branch


@pytest.fixture(scope="module")
def federation(trained: Path) -> Trained:
    return fedrbn.load(trained)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    found = data.load("digits-mini")
    assert isinstance(found, DataSet)
    return found


def test_clean_statistics_are_the_mean_over_batches() -> None:
    """One linear-free layer: BN sees the pixels themselves, so its statistics are those of the batches.

    Batch 1 holds 64 images of value 0, batch 2 holds 32 of 51 and 32 of 153 (0.2 and 0.6): means 0 and 0.4, variances
    0 and (0.2)² · 64/63 (PyTorch stores the unbiased one). Their means: 0.2 and 0.02 · 64/63.
    """
    net = dual(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1)))
    images = torch.cat([torch.zeros(64), torch.full((32,), 51.0), torch.full((32,), 153.0)]).to(torch.uint8)
    measure_clean_statistics(net, images.reshape(-1, 1, 1, 1))
    values = tensors(net)
    assert values["network.1.clean.running_mean"].item() == pytest.approx(0.2)
    assert values["network.1.clean.running_var"].item() == pytest.approx(0.02 * 64 / 63)
    assert values["network.1.noised.running_mean"].item() == 0
    assert values["network.1.noised.running_var"].item() == 1


def test_momentum_is_put_back() -> None:
    layer = nn.BatchNorm1d(1, momentum=0.3)
    net = dual(nn.Sequential(nn.Flatten(), layer))
    measure_clean_statistics(net, torch.zeros(4, 1, 1, 1, dtype=torch.uint8))
    assert {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm1d)} == {0.3}


def test_the_noised_branch_is_propagated_as_for_an_st_user(federation: Trained, digits: DataSet) -> None:
    newcomer = onboard(federation, digits.domains[1].train.images)
    plan, state = federation.plan, federation.state
    givers = donors(state, plan)
    own = {name: value for name, value in tensors(newcomer.net).items() if name in plan.names.personal}
    assert plan.method.propagation is not None
    expected = propagate({**state.personal, "x": own}, ["x"], givers, plan.names.batch_norms, plan.method.propagation)[
        "x"
    ]
    assert expected
    assert all(torch.equal(own[name], value) for name, value in expected.items())
    assert newcomer.branch is Branch.NOISED
    assert newcomer.images == 8 * 64
    assert list(newcomer.donors) == givers
    assert sum(newcomer.donors.values()) == pytest.approx(1)


def test_printed_weights_are_those_used(federation: Trained, digits: DataSet) -> None:
    """With a limit on donors: none weighs more than it, and Eq. 3 with the printed weights gives the estimate."""
    propagation = federation.plan.method.propagation
    assert propagation is not None
    capped = replace(propagation, guard=Guard(cap=0.3))
    limited = replace(
        federation, plan=replace(federation.plan, method=replace(federation.plan.method, propagation=capped))
    )
    free = onboard(federation, digits.domains[1].train.images)
    newcomer = onboard(limited, digits.domains[1].train.images)
    assert max(free.donors.values()) > 0.31, "without a limit one donor has more"
    assert max(newcomer.donors.values()) == pytest.approx(0.3)
    own = tensors(newcomer.net)
    for layer in limited.plan.names.batch_norms:
        if layer.branch is Branch.NOISED:
            for name in layer.statistics:
                given = (weight * limited.state.personal[donor][name] for donor, weight in newcomer.donors.items())
                torch.testing.assert_close(own[name], sum(given))


def test_the_shared_weights_stay(federation: Trained, digits: DataSet) -> None:
    newcomer = onboard(federation, digits.domains[1].train.images[:64])
    values = tensors(newcomer.net)
    assert all(torch.equal(values[name], value) for name, value in federation.state.shared.items())


def test_average_takes_bn_a_over_at_users_only(federation: Trained) -> None:
    """All users have as much data here, so the mean over AT users is the plain mean."""
    at = donors(federation.state, federation.plan)
    name = next(names.mean for names in federation.plan.names.batch_norms if names.branch is Branch.NOISED)
    expected = torch.stack([federation.state.personal[client][name] for client in at]).mean(0)
    torch.testing.assert_close(tensors(federation.average())[name], expected)


def test_calibration_moves_weights_but_not_the_noised_branch(federation: Trained, digits: DataSet) -> None:
    newcomer = onboard(federation, digits.domains[1].train.images[:64])
    before = {name: value.clone() for name, value in tensors(newcomer.net).items()}
    after = tensors(calibrate(federation, newcomer, some(digits.domains[1].train, 40), steps=2).net)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "network.conv1.weight" in changed
    assert not changed & federation.plan.names.noised
    assert all(torch.equal(value, tensors(newcomer.net)[name]) for name, value in before.items())


def test_a_newcomer_of_fedrbn_plus_is_calibrated_although_bn_c_predicts(
    tiny: Callable[..., Experiment], tmp_path: Path, digits: DataSet
) -> None:
    """Its calibration normalises attacked images by their batch, which would move BN_a's running statistics."""
    fedrbn.run(tiny(method={"name": "fedrbn+"}, train={"rounds": 1}), tmp_path / "run")
    plus = fedrbn.load(tmp_path / "run")
    newcomer = onboard(plus, digits.domains[1].train.images[:64])
    assert newcomer.branch is Branch.CLEAN
    before = {name: value.clone() for name, value in tensors(newcomer.net).items()}
    after = tensors(calibrate(plus, newcomer, some(digits.domains[1].train, 40), steps=2).net)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "network.conv1.weight" in changed
    assert not changed & plus.plan.names.noised


def test_comparison_with_participants_of_the_domain(federation: Trained, digits: DataSet) -> None:
    newcomer = onboard(federation, digits.domains[1].train.images[:64])
    test = some(digits.domains[1].test, 12)
    scores = compare(federation, newcomer, "pen", test)
    assert [s.name for s in scores] == [
        "onboarded",
        "mean batch norm",
        "pen-0 (AT, same domain)",
        "pen-1 (ST, same domain)",
    ]
    assert all(0 <= s.ra <= s.sa <= 1 for s in scores)
    stranger = compare(federation, newcomer, "nowhere", test)
    nearest = max(newcomer.donors, key=lambda donor: newcomer.donors[donor])
    assert [s.name for s in stranger][2:] == [f"{nearest} (AT, nearest donor)"]


def test_images_of_participants_are_left_out(federation: Trained, digits: DataSet) -> None:
    found = newcomer_data(federation, "digits-mini", "pen")
    assembled = assemble.assemble(federation.experiment)
    used = [c for c in assembled.federation.clients if c.domain == "pen"]
    held = {image.numpy().tobytes() for c in used for part in (c.train, c.validation) for image in part.images}
    assert found.labelled is not None
    assert not held & {image.numpy().tobytes() for image in found.labelled.images}
    assert len(digits.domains[1].train) - len(found.labelled) >= sum(len(c.train) + len(c.validation) for c in used)


def test_a_folder_of_unlabelled_images(federation: Trained, tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(np.full((10, 10, 3), 40 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    found = newcomer_data(federation, str(tmp_path))
    assert found.images[:, 0, 0, 0].tolist() == [0, 40, 80]
    assert found.images.shape == (3, 3, 28, 28)
    assert found.labelled is None
    assert onboard(federation, found.images).images == 3


def test_refusals(federation: Trained, digits: DataSet) -> None:
    images = digits.domains[0].train.images
    with pytest.raises(OnboardingError, match=r"shape \(1, 3, 28, 28\); expected at least 2"):
        onboard(federation, images[:1])
    with pytest.raises(OnboardingError, match="expected one of plain, pen"):
        newcomer_data(federation, "digits-mini")
    with pytest.raises(ValueError, match="Did you mean 'street'"):
        newcomer_data(federation, "digits-mini", "stret")
    newcomer = replace(onboard(federation, images[:64]), branch=Branch.CLEAN, donors={})
    with pytest.raises(OnboardingError, match="0 donors"):
        calibrate(federation, newcomer, digits.domains[0].train, steps=1)


def test_methods_without_local_batch_norm_are_explained(
    tiny: Callable[..., Experiment], tmp_path: Path, digits: DataSet
) -> None:
    fedrbn.run(tiny(method={"name": "fatavg"}, train={"rounds": 1}), tmp_path / "run")
    with pytest.raises(OnboardingError, match="one batch norm for all clients"):
        onboard(fedrbn.load(tmp_path / "run"), digits.domains[0].train.images)


def test_the_command_writes_a_network(trained: Path, tmp_path: Path) -> None:
    model = tmp_path / "new.safetensors"
    options = ["--data", "digits-mini", "--domain", "pen", "--samples", "6", "--steps", "1", "-o", str(model), "--json"]
    result = CliRunner().invoke(app, ["onboard", str(trained), *options])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["domain"] == "pen"
    assert record["branch"] == "noised"
    assert set(record["scores"]) >= {"onboarded", "mean batch norm", "pen-0 (AT, same domain)"}
    card = model_file.read(model).card
    assert (card.client, card.sa) == ("newcomer", record["scores"]["onboarded"]["sa"])
