"""Figures of networks: principal components, the plane of templates, images, accuracy over ε."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedrbn
from fedrbn.attacks import PGD, Untargeted
from fedrbn.cli import app
from fedrbn.config import Experiment
from fedrbn.data import load as load_data
from fedrbn.data.samples import DataSet, Samples
from fedrbn.errors import FigureError
from fedrbn.federated.assemble import assemble
from fedrbn.figures import bars, curves, epsilon, penultimate, samples, sizes, statistics
from fedrbn.figures.sources import Request
from fedrbn.nets.dual_bn import DualNet, dual
from fedrbn.nets.state import batch_norms
from fedrbn.reproduce import declarations, experiment_cells
from fedrbn.reproduce.scales import SCALES
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import load
from fedrbn.types import Branch, Role


def test_principal_components_of_a_cross_in_space() -> None:
    # Points ±3 along u = (3, 4, 0)/5 and ±1 along v = (0, 0, 1), moved by (7, 7, 7): the first axis is u, the second v.
    # Variances are 2·9/3 = 6 and 2·1/3 = 2/3, so they explain 9/10 and 1/10.
    u, v = np.array([0.6, 0.8, 0.0]), np.array([0.0, 0.0, 1.0])
    rows = np.stack([3 * u, -3 * u, v, -v]) + 7
    plane, shares = statistics.pca(rows)
    np.testing.assert_allclose(plane, [[3, 0], [-3, 0], [0, 1], [0, -1]], atol=1e-12)
    assert shares == pytest.approx((0.9, 0.1))
    turned, _ = statistics.pca(-rows)  # the axes keep their sign, so the points are mirrored
    np.testing.assert_allclose(turned, -plane, atol=1e-12)


def test_one_channel_has_one_component() -> None:
    plane, shares = statistics.pca(np.array([[1.0], [3.0]]))
    np.testing.assert_allclose(plane, [[-1, 0], [1, 0]])
    assert shares == (1.0, 0.0)


def test_every_layer_has_a_panel(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    """AlexNet has seven layers of batch norm: five side by side, two below them, and room for three is left empty."""
    few = {"users_per_domain": 1, "at": ["pen"], "fraction": 0.02}
    data, model = {"domains": ["pen", "plain"], "image_size": 64}, {"name": "alexnet", "width": 1 / 16}
    fedrbn.run(tiny(train={"rounds": 1}, federation=few, data=data, model=model), tmp_path / "run")
    figure = statistics.of_run(tmp_path / "run")
    shown = [axes.get_title() for axes in figure.axes if axes.axison]
    names = [name.removeprefix("network.") for name in statistics.layers(batch_norms(load(tmp_path / "run").net))]
    assert len(names) == 7
    assert sorted(shown) == sorted(f"{name} {kind}" for name in names for kind in ("mean", "variance"))
    assert (len(figure.axes), len(shown)) == (20, 14)
    assert len(set(names)) == 7


def test_points_are_users_by_branch(trained: Path) -> None:
    opened = load(trained)
    layer = statistics.layers(batch_norms(opened.net))[0]
    rows, dots = statistics.points(opened, layer, variance=False)
    # ten users, five of them AT: a circle each, then a cross for the five and a plus for the others
    assert [sum(dot.marker == marker for dot in dots) for marker in "ox+"] == [10, 5, 5]
    first = opened.plan.members[0]
    np.testing.assert_allclose(
        rows[0], opened.state.personal[first.id][f"{layer}.clean.running_mean"].numpy(), rtol=1e-6
    )
    assert (dots[0].domain, first.role) == ("plain", Role.AT)


def test_statistics_that_nobody_filled_are_left_out(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    fedrbn.run(tiny(train={"rounds": 1}, federation={"users_per_domain": 1, "at": 0.0}), tmp_path / "run")
    opened = load(tmp_path / "run")
    _, dots = statistics.points(opened, statistics.layers(batch_norms(opened.net))[0], variance=True)
    assert [dot.marker for dot in dots] == ["o"] * 5  # without AT users there is no BN_a


def last_layer_net() -> DualNet:
    """Four inputs to batch norm, then a last layer whose templates lie in the plane of the first two inputs."""
    net = nn.Sequential(OrderedDict[str, nn.Module](flat=nn.Flatten(), bn=nn.BatchNorm1d(4), head=nn.Linear(4, 3)))
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[0.0, 0, 0, 0], [2, 0, 0, 0], [1, 3, 0, 0]]))
    made = dual(net)
    with torch.no_grad():
        made.network.bn.noised.running_mean.fill_(1.0)
    return made.eval()


def test_basis_of_three_templates() -> None:
    # e1 along (2, 0, 0); of (1, 3, 4) the rest is (0, 3, 4), of length 5
    found = penultimate.basis(torch.tensor([[1.0, 1, 1], [3, 1, 1], [2, 4, 5]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0], [0, 0.6], [0, 0.8]]))


def test_templates_on_a_line_have_no_plane() -> None:
    with pytest.raises(FigureError, match="on one line"):
        penultimate.basis(torch.tensor([[0.0, 0], [1, 1], [2, 2]]))
    with pytest.raises(FigureError, match="on one line"):
        penultimate.basis(torch.zeros(3, 2))


def test_projection_on_a_hand_made_last_layer() -> None:
    images = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    images[1] = torch.tensor([[[255, 51], [7, 9]]])  # 1 and 0.2 in the two inputs that span the plane
    given = Samples(images, torch.tensor([0, 2]))
    one = 1 / np.sqrt(1 + 1e-5)  # batch norm divides by √(σ² + ε₀), with variance 1
    clean, labels = penultimate.projected(last_layer_net(), Branch.CLEAN, given, classes=3)
    torch.testing.assert_close(clean, torch.tensor([[0.0, 0.0], [one, 0.2 * one]], dtype=torch.float32))
    assert labels.tolist() == [0, 2]
    noised, _ = penultimate.projected(last_layer_net(), Branch.NOISED, given, classes=3)  # BN_a subtracts a mean of 1
    torch.testing.assert_close(noised, torch.tensor([[-one, -one], [0.0, -0.8 * one]], dtype=torch.float32))


def test_a_network_must_end_in_its_classes() -> None:
    with pytest.raises(FigureError, match="expected one that ends in a linear layer"):
        penultimate.last_layer(last_layer_net(), classes=10)


def test_images_of_three_classes_are_chosen_the_same_every_time(trained: Path) -> None:
    federation = assemble(RunDirectory.open(trained).experiment()).federation
    clients = [client for client in federation.clients if client.domain == "pen"]
    one, two = (penultimate.chosen_images(clients, seed=1) for _ in range(2))
    assert all(torch.equal(a.images, b.images) for (_, a), (_, b) in zip(one, two, strict=True))
    for client, own in one:
        wanted = torch.isin(client.test.labels, torch.tensor([0, 1, 2])).sum()
        assert len(own) == wanted
        assert set(own.labels.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bn-pca", ["bn1 mean", "bn5 variance", "BN_a, estimated", "street"]),
        ("user-sizes", ["street", "Filled: AT users", "partition uniform"]),
        ("penultimate", ["BN_c, clean", "BN_a, attacked", "class 2", "texture"]),
        ("convergence", ["FedRBN", "round", "validation in %"]),
        ("domain-wise", ["FedRBN", "RA in %", "SA in %", "pen"]),
    ],
)
def test_figures_of_a_run(name: str, expected: list[str], trained: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["figure", name, "--run", str(trained), "-o", str(tmp_path / name)])
    assert done.exit_code == 0, (done.output, done.exception)
    content = (tmp_path / f"{name}.svg").read_text()
    for text in [*expected, "digits-mini,"]:
        assert text in content


def test_the_standard_model_has_no_at_users(tiny: Callable[..., Experiment], trained: Path, tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"with 5 AT user\(s\); expected none"):
        penultimate.standard_penultimate(Request(runs=(trained,)))
    alone = {"users_per_domain": 1, "at": 0.0}
    fedrbn.run(tiny(train={"rounds": 1}, federation=alone, method={"name": "fatavg"}), tmp_path / "run")
    figure = penultimate.standard_penultimate(Request(runs=(tmp_path / "run",)))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["standard model, clean", "standard model, attacked"]
    assert len(figure.axes) == 10, "five domains"


def test_transfer_needs_two_runs(trained: Path) -> None:
    with pytest.raises(FigureError, match="expected two"):
        penultimate.transfer_penultimate(Request(runs=(trained,)))
    figure = penultimate.transfer_penultimate(Request(runs=(trained, trained)))
    assert [axes.get_title() for axes in figure.axes[:2]] == ["BN_a trained, clean", "BN_a transferred, clean"]


def test_runs_that_share_nothing_have_no_plane(tiny: Callable[..., Experiment], tmp_path: Path) -> None:
    experiment = tiny(
        train={"rounds": 1}, method={"name": "local-at"}, federation={"users_per_domain": 1, "at": ["pen"]}
    )
    fedrbn.run(experiment, tmp_path / "run")
    with pytest.raises(FigureError, match="share no weights"):
        penultimate.bn_penultimate(Request(runs=(tmp_path / "run",)))
    with pytest.raises(FigureError, match="only one branch"):
        epsilon.epsilon(Request(runs=(tmp_path / "run",)))


def test_missing_runs_name_the_command(tmp_path: Path) -> None:
    request = Request(store=tmp_path, scale="smoke", data="digits-mini")
    expected = "fedrbn reproduce benchmark --scale smoke --seeds 1 --data digits-mini --only 'Digits/FedRBN λ=0.5/All'"
    with pytest.raises(FigureError) as error:
        statistics.bn_pca(request)
    assert expected in str(error.value)
    with pytest.raises(FigureError, match=r"reproduce highlight --scale smoke .* --only 'Digits/FATAvg/0 %'"):
        penultimate.standard_penultimate(request)


def test_runs_of_one_method_are_told_apart_by_their_directory(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(trained)
    copy = tmp_path / "copied"
    copy.mkdir()
    for name in ("config.toml", "rounds.jsonl", "evaluations.jsonl"):
        (copy / name).write_bytes((trained / name).read_bytes())
    figure = bars.domain_wise(Request(runs=(trained, copy)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["trained", "copied"]
    record = RunDirectory.open(trained).records("evaluations.jsonl")[0]
    first = figure.axes[0].containers[0][0].get_height()
    assert first == pytest.approx(100 * record["domains"]["plain"]["ra"])


def test_curves_of_a_run_are_its_validations(trained: Path) -> None:
    records = RunDirectory.open(trained).records("rounds.jsonl")
    validated = {r["round"]: 100 * r["validation"]["score"] for r in records if "validation" in r}
    assert curves.scores(trained) == pytest.approx(validated)
    assert list(validated) == [2, 4]


def test_a_run_without_a_validated_round_is_refused(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((trained / "config.toml").read_bytes())
    with pytest.raises(FigureError, match="no validated round in these runs"):
        curves.convergence(Request(runs=(tmp_path,)))


def test_circles_are_the_users_of_the_dirichlet_experiment() -> None:
    """Five domains of ten users; areas are proportional to training images, the largest 220 square points."""
    figure = sizes.user_sizes(Request(scale="paper", data="digits-mini"))
    (axes,) = figure.axes
    (found,) = experiment_cells.cells(declarations.read("dirichlet"), SCALES["paper"], data="digits-mini", only="FATBN")
    members = assemble(found.runs[0]).plan.members
    assert len(axes.collections) == 5
    areas = np.concatenate([own.get_sizes() for own in axes.collections])
    counts = np.array([member.samples for member in members])
    np.testing.assert_allclose(areas, 220 * counts / counts.max())
    assert len(set(counts)) > 25, "sizes are unequal"
    filled = [tuple(face) != (1, 1, 1, 1) for own in axes.collections for face in own.get_facecolors()]
    assert filled == [member.role is Role.AT for member in members]
    assert sum(filled) == 6
    assert "Dirichlet with concentration 1, seed 1" in figure.get_supxlabel().replace("\n", " ")
    other = sizes.user_sizes(Request(scale="paper", data="digits-mini", seeds=(2,)))
    assert list(other.axes[0].collections[0].get_sizes()) != list(axes.collections[0].get_sizes())


def test_samples_show_the_first_image_of_each_class() -> None:
    loaded = load_data("digits-mini")
    assert isinstance(loaded, DataSet)
    figure = samples.sheet(loaded)
    assert len(figure.axes) == 50
    assert [axes.get_title() for axes in figure.axes[:3]] == ["0", "1", "2"]
    pen = loaded.domains[1]
    expected = pen.train.images[int((pen.train.labels == 3).nonzero()[0])].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(figure.axes[13].images[0].get_array(), expected.squeeze())


def test_adaptive_attacks_are_never_weaker(trained: Path) -> None:
    opened, assembly = load(trained), assemble(RunDirectory.open(trained).experiment())
    client = assembly.federation.clients[0]
    attack = Untargeted(PGD(eps=8 / 255, steps=3, step_size=4 / 255))
    found = epsilon.withstood(opened.dual_client(client.id), client.test, attack)
    assert found.attacked[epsilon.ADAPTIVE] <= found.attacked[epsilon.PREDICTING] <= found.clean
    assert found.attacked[epsilon.OTHER] <= found.clean


def test_epsilon_needs_a_run() -> None:
    with pytest.raises(FigureError, match="--run"):
        epsilon.epsilon(Request())


def test_a_domain_without_such_images_has_an_empty_panel(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penultimate, "chosen_images", lambda clients, seed: [])
    figure = penultimate.bn_penultimate(Request(runs=(trained,)))
    assert all(len(line.get_xdata()) == 0 for axes in figure.axes for line in axes.lines)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["class 0", "class 1", "class 2"]
