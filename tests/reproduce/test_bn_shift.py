"""How far an attack moves batch-norm statistics, and whether users cluster by domain."""

from __future__ import annotations

import math
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedrbn.cli import app
from fedrbn.config import Experiment
from fedrbn.errors import FigureError
from fedrbn.federated.assemble import assemble
from fedrbn.figures import bn_shift as figure
from fedrbn.figures.sources import Request
from fedrbn.nets.dual_bn import dual
from fedrbn.reproduce import bn_shift, domain_divergence, measures, reading
from fedrbn.reproduce.bn_shift import Moments
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import load
from fedrbn.types import Role


def test_shifts_by_hand() -> None:
    clean = Moments(torch.tensor([0.0, 1.0]), torch.tensor([3.5, 0.5]), eps=0.5)
    other = Moments(torch.tensor([-1.0, 1.5]), torch.tensor([4 * math.e - 0.5, 0.5]), eps=0.5)
    found = bn_shift.shift(clean, other)
    # with ε₀ the clean variances are 4 and 1: |−1|/2 = 0.5 and |0.5|/1 = 0.5
    assert found.mean == pytest.approx(0.5)
    assert found.variance == pytest.approx(0.5)  # ln e = 1 and ln 1 = 0


def test_moments_of_what_enters_each_layer() -> None:
    net = nn.Sequential(
        OrderedDict[str, nn.Module](first=nn.BatchNorm2d(1), flat=nn.Flatten(), second=nn.BatchNorm1d(2))
    )
    made = dual(net).eval()
    with torch.no_grad():
        made.network.first.clean.running_mean.fill_(1.0)
    x = torch.tensor([[[[0.0, 2.0]]], [[[4.0, 6.0]]]])
    first, second = bn_shift.moments(made, x)
    assert first.mean.tolist() == [3.0]
    assert first.variance.tolist() == [5.0]  # (9 + 1 + 1 + 9) / 4
    # BN_c subtracts 1 and divides by √(1 + ε₀): the two pixels are −1, 3 and 1, 5
    assert (second.mean * math.sqrt(1 + 1e-5)).tolist() == pytest.approx([1.0, 3.0], abs=1e-6)
    assert second.variance.tolist() == pytest.approx([4.0, 4.0], rel=1e-4)


def test_a_calibrated_network_has_the_statistics_of_its_images(trained: Path) -> None:
    client = assemble(RunDirectory.open(trained).experiment()).federation.clients[0]
    net = bn_shift.calibrated(load(trained).net, client)
    # PyTorch's running variance is n/(n − 1) times that of the n = images × positions. Without that factor, every layer
    # sees exactly the statistics that its BN_c holds.
    images, positions = len(bn_shift.held_out(client)), (28 * 28, 14 * 14, 7 * 7, 1, 1)
    layers = bn_shift._layers(net)
    for layer, count in zip(layers, positions, strict=True):
        layer.clean.running_var.mul_(1 - 1 / (images * count))
    entering = bn_shift.moments(net, bn_shift.held_out(client).pixels(slice(None))[0])
    for layer, found in zip(layers, entering, strict=True):
        torch.testing.assert_close(layer.clean.running_mean.double(), found.mean, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(layer.clean.running_var.double(), found.variance, atol=1e-5, rtol=1e-4)


def test_one_test_image_is_enough_because_validation_images_are_held_out_too(tiny: Callable[..., Experiment]) -> None:
    client = assemble(tiny(federation={"test_samples": 1})).federation.clients[0]
    assert len(client.test) == 1
    assert len(bn_shift.held_out(client)) == 1 + len(client.validation) > 2


def test_an_at_user_speaks_for_its_domain(trained: Path) -> None:
    clients = assemble(RunDirectory.open(trained).experiment()).federation.clients
    found = bn_shift.one_user_per_domain(reversed(clients))  # the second user of each domain is an ST user
    assert len(found) == 5
    assert {client.role for client in found} == {Role.AT}


def test_dark_pixels_lifted_to_grey_move_the_first_layer_far_more(tiny: Callable[..., Experiment]) -> None:
    def first(threat: str) -> float:
        assembly = assemble(tiny(attack={"threat": threat, "steps": 7}))
        client = assembly.federation.clients[0]
        clean, attacked = bn_shift.attacked_moments(bn_shift.calibrated(assembly.net, client), client, assembly)
        return bn_shift.shift(clean[0], attacked[0]).mean

    assert first("pixel") < 0.05
    assert first("authors-release") > 0.2


def test_clipping_to_the_box_alone_does_nothing_in_pixels_and_nearly_all_in_the_release(
    tiny: Callable[..., Experiment],
) -> None:
    def first(threat: str) -> tuple[float, float]:
        assembly = assemble(tiny(attack={"threat": threat, "steps": 7}))
        client = assembly.federation.clients[0]
        net = bn_shift.calibrated(assembly.net, client)
        pairs = bn_shift.clipped_moments(net, client, assembly.attack), bn_shift.attacked_moments(net, client, assembly)
        clipped, attacked = (bn_shift.shift(clean[0], other[0]).mean for clean, other in pairs)
        return clipped, attacked

    assert first("pixel")[0] == 0  # pixels are in [0, 1] already
    clipped, attacked = first("authors-release")
    assert clipped == pytest.approx(attacked, rel=0.1)


def test_what_training_stored_is_bn_a_against_bn_c(trained: Path) -> None:
    found = bn_shift.measure(trained)
    opened, client = load(trained), assemble(RunDirectory.open(trained).experiment()).federation.clients[0]
    layer = bn_shift._layers(opened.dual_client(client.id))[0]
    assert layer.noised is not None
    apart = (layer.noised.running_mean - layer.clean.running_mean).abs() / (layer.clean.running_var + 1e-5).sqrt()
    lowest, highest = found["shift stored 1 lowest"], found["shift stored 1 highest"]
    assert lowest - 1e-6 <= apart.mean().item() <= highest + 1e-6
    assert {text.split(" ")[1] for text in found} == {"random", "trained", "clipped", "stored", "domains"}
    assert {text.split(" ")[2] for text in found} == set("12345")
    assert found["shift random 1 lowest"] <= found["shift random 1 mean"] <= found["shift random 1 highest"]


def test_neighbours_by_chance(trained: Path) -> None:
    found = domain_divergence.neighbours(trained)
    assert found["neighbours chance"] == pytest.approx(100 / 9)  # two users per domain: one of nine others is of mine
    assert found["neighbours same"] in [10.0 * users for users in range(11)]


def test_what_was_measured_is_kept_and_read(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert reading.value(run, "neighbours same") is None
    measures.complete(run, measures.needed(["ra", "neighbours same", "neighbours chance"]))
    assert reading.value(run, "neighbours chance") == pytest.approx(100 / 9)
    assert not (run / "shift.json").exists()  # nobody asked
    (run / "neighbours.json").write_text('{"neighbours same": 1.0}', encoding="utf-8")
    measures.complete(run, measures.needed(["neighbours same"]))
    assert reading.value(run, "neighbours same") == 1.0  # not measured again


def test_the_figure_has_a_line_for_each_threat_model_and_a_yardstick(trained: Path) -> None:
    drawn = figure.bn_shift(Request(runs=(trained,)))
    labels = [[line.get_label() for line in axes.get_lines()] for axes in drawn.axes]
    assert labels[0] == ["attacked, pixel"]
    assert labels[1] == ["attacked, pixel", "another domain, clean"]
    expected = bn_shift.measure(trained)["shift random 5 mean"]
    assert drawn.axes[0].get_lines()[0].get_ydata()[-1] == pytest.approx(expected)


def test_two_runs_of_one_threat_model_are_refused(trained: Path) -> None:
    with pytest.raises(FigureError, match="at most one of each threat model"):
        figure.bn_shift(Request(runs=(trained, trained)))


def test_without_runs_the_figure_asks_for_the_benchmarks_at_the_scale_of_published_tables(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["figure", "bn-shift", "--scale", "full", "--store", str(tmp_path)])
    assert isinstance(done.exception, FigureError)
    assert "fedrbn reproduce benchmark --scale full --seeds 1 --only 'Digits/FedRBN λ=0.5/20 %'" in str(done.exception)
