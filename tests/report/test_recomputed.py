"""What the page computes anew is what the run did: weights that give the stored BN_a, images within ε."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedrbn.attacks import Loss
from fedrbn.evaluation import checklist as checking
from fedrbn.federated.assemble import assemble
from fedrbn.report.recomputed import Donations, checklist, donations
from fedrbn.report.sample_sheet import LARGEST, SHOTS, as_uri, contact_sheet
from fedrbn.runs.load import Trained, load
from fedrbn.types import Branch, Member, Role


@pytest.fixture(scope="module")
def networks(trained: Path) -> Trained:
    return load(trained)


def image(uri: str) -> np.ndarray:
    head, _, content = uri.partition(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))).astype(int)


def test_the_weights_give_the_stored_statistics(networks: Trained) -> None:
    """Eq. 3: a receiver's BN_a is the sum of its donors', weighted by its row of α."""
    found = donations(networks)
    assert found is not None
    assert len(found.receivers) == len(found.donors) == 5
    personal = networks.state.personal
    names = [n for layer in networks.plan.names.batch_norms if layer.branch is Branch.NOISED for n in layer.statistics]
    for member, row in zip(found.receivers, found.weights, strict=True):
        assert sum(row) == pytest.approx(1)
        for name in names:
            mixed = sum(a * personal[donor.id][name].double() for a, donor in zip(row, found.donors, strict=True))
            torch.testing.assert_close(personal[member.id][name].double(), mixed, rtol=1e-5, atol=1e-6)


def test_methods_that_propagate_nothing_have_no_donations(rival: Path) -> None:
    assert donations(load(rival)) is None


def test_weights_are_summed_up_by_domain() -> None:
    """Receivers a1, a2, b1; donors a0, a9 and b0. Domain a takes (0.5+0.1 + 0.3+0.3)/2 = 0.6 from a, 0.4 from b."""

    def member(name: str, role: Role) -> Member:
        return Member(name, name[0], role.duty, 10)

    found = Donations(
        tuple(member(name, Role.ST) for name in ("a1", "a2", "b1")),
        tuple(member(name, Role.AT) for name in ("a0", "a9", "b0")),
        ((0.5, 0.1, 0.4), (0.3, 0.3, 0.4), (0.1, 0.1, 0.8)),
    )
    ours, theirs, table = found.by_domain()
    assert (ours, theirs) == (("a", "b"), ("a", "b"))
    assert table[0] == pytest.approx((0.6, 0.4))
    assert table[1] == pytest.approx((0.2, 0.8))
    assert found.own_domain == pytest.approx((0.6 + 0.6 + 0.8) / 3)


def test_the_contact_sheet_shows_real_attacks(networks: Trained) -> None:
    assembly = assemble(networks.experiment)
    strips = contact_sheet(networks, assembly)
    assert [strip.domain for strip in strips] == list(assembly.federation.domains)
    assert {strip.role for strip in strips} == {"ST"}
    for strip in strips:
        client = next(c for c in assembly.federation.clients if c.id == strip.client)
        assert len(strip.shots) == SHOTS
        for index, shot in enumerate(strip.shots):
            clean, attacked, difference = image(shot.clean), image(shot.attacked), image(shot.difference)
            np.testing.assert_array_equal(clean, client.test.images[index].permute(1, 2, 0).numpy())
            assert 0 < abs(attacked - clean).max() <= 8  # ε = 8/255
            # 0.5 + d/(2ε) of 255 levels, where d is at most half a level off the difference of rounded pixels
            np.testing.assert_allclose(difference, 127.5 + (attacked - clean) * 255 / 16, atol=8.5)
            assert shot.truth == networks.classes[client.test.labels[index]]
    assert contact_sheet(networks, assembly) == strips  # the same images every time


def test_predictions_on_the_sheet_are_those_of_the_client(networks: Trained) -> None:
    assembly = assemble(networks.experiment)
    strip = contact_sheet(networks, assembly)[1]
    client = next(c for c in assembly.federation.clients if c.id == strip.client)
    x, _ = client.test.pixels(slice(0, SHOTS))
    with torch.no_grad():
        probabilities = networks.client(strip.client)(x).softmax(1)
    for shot, row in zip(strip.shots, probabilities, strict=True):
        assert shot.prediction == networks.classes[int(row.argmax())]
        assert shot.confidence == pytest.approx(float(row.max()), abs=1e-5)
        assert shot.right == (shot.prediction == shot.truth)
        assert shot.withstands == (shot.attacked_prediction == shot.truth)


def test_images_of_one_channel_and_large_ones_can_be_shown() -> None:
    assert image(as_uri(torch.zeros(1, 28, 28))).shape == (28, 28)
    assert image(as_uri(torch.ones(3, 256, 128))).shape == (LARGEST, LARGEST // 2, 3)


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "QUERIES", 10)


@pytest.mark.slow
@pytest.mark.usefixtures("short_search")
def test_the_checklist_is_that_of_fedrbn_evaluate(networks: Trained) -> None:
    verdicts = {verdict.name: verdict for verdict in checklist(networks, assemble(networks.experiment))}
    assert len(verdicts) == 14
    within = verdicts["adversarial images stay in [0, 1] and in the ball"]
    assert within.passed
    assert (within.column, within.detail, within.allowed) == ("ra", "not at 0.0% of images", "at most 0.0%")


@pytest.mark.slow
@pytest.mark.usefixtures("short_search")
def test_an_attack_of_ones_own_is_judged_too(networks: Trained) -> None:
    def black(loss: Loss, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.zeros_like(x)

    verdicts = checklist(networks, replace(assemble(networks.experiment), attack=black))
    failed = {verdict.name for verdict in verdicts if verdict.passed is False}
    assert "adversarial images stay in [0, 1] and in the ball" in failed
