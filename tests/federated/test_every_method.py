"""Every method and every option of the loss, as a whole run of two tiny rounds; those with memory resume exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrbn
import fedrbn.federated.training.affine
from fedrbn.config import ConfigError, Experiment, FederationConfig
from fedrbn.cost.count import cost_of
from fedrbn.errors import FederationError
from fedrbn.federated.assemble import assemble
from fedrbn.federated.methods import METHODS
from fedrbn.federated.prediction import predicting_branch
from fedrbn.federated.protocol import Result, Train, Upload
from fedrbn.federated.server import initial_state, round_of
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Role
from runs.test_train import Noting, assert_same_run

Make = Callable[..., Experiment]
SMALL: dict[str, dict[str, Any]] = {
    "data": {"domains": ["plain", "pen"]},
    "federation": {"test_samples": 4},
    "train": {"rounds": 2, "validate_every": 1, "lr": 0.05},
}
OPTIONS: dict[str, dict[str, Any]] = {"finetune": {"ft_iterations": 2, "freeze": 1}}


def small(tiny: Make, name: str, train: dict[str, Any] | None = None, **options: Any) -> Experiment:
    method = {"name": name, **OPTIONS.get(name, {}), **options}
    return tiny(**{**SMALL, "train": {**SMALL["train"], **(train or {})}}, method=method)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_is_evaluated(name: str, tiny: Make, tmp_path: Path) -> None:
    experiment = small(tiny, name)
    record = fedrbn.run(experiment, tmp_path / "run")
    assert record["method"] == name
    assert len(record["users"]) == 4
    assert all(0 <= user["ra"] <= user["sa"] <= 1 for user in record["users"].values())
    last = RunDirectory.open(tmp_path / "run").checkpoint("last")
    assert last is not None
    rounds = {"fatavg-free": 1, "fatbn-free": 1, "finetune": 4}.get(name, 2)
    assert last.state.round == rounds
    trained = fedrbn.load(tmp_path / "run")
    with torch.no_grad():
        assert torch.isfinite(trained.client("pen-1")(torch.rand(2, 3, 28, 28))).all()
        assert torch.isfinite(trained.newcomer()(torch.rand(2, 3, 28, 28))).all()


@pytest.mark.parametrize("name", ["fedavg", "fedbn"])
def test_nobody_is_an_at_user_of_a_plain_method(name: str, tiny: Make) -> None:
    """Whatever federation.at says, it is one experiment, chosen by the clean accuracy of all and counted as ST."""
    made = [
        assemble(small(tiny, name).model_copy(update={"federation": federation(at)})) for at in (0.5, 0.0, ("pen",))
    ]
    assert len({each.experiment.key() for each in made}) == 1
    assert all({member.role for member in each.plan.members} == {Role.ST} for each in made)
    assert list(cost_of(made[0])["macs_per_image"]) == ["ST"]
    with pytest.raises(ConfigError, match=r"got method\.at_loss for method"):
        assemble(small(tiny, name, at_loss="trades"))


def federation(at: object) -> FederationConfig:
    return FederationConfig.model_validate({"users_per_domain": 2, "at": at, "fraction": 0.03, "test_samples": 4})


def test_at_weight_counts_uploads_of_at_users_more_often(tiny: Make, tmp_path: Path) -> None:
    """With 10⁶ the mean is that of the AT users alone, up to a part in 10⁶ of the distance between the two means."""
    ends = {}
    for at_weight in (1.0, 1e6):
        fedrbn.run(small(tiny, "fatavg", train={"rounds": 1, "at_weight": at_weight}), tmp_path / str(at_weight))
        checkpoint = RunDirectory.open(tmp_path / str(at_weight)).checkpoint("last")
        assert checkpoint is not None
        ends[at_weight] = checkpoint.state.shared["network.fc1.weight"]
    assembly = assemble(small(tiny, "fatavg", train={"rounds": 1}))
    state = initial_state(assembly.net, assembly.plan)
    with assembly.executor() as execute:
        jobs = [Train(m.id, m.duty, state.personal[m.id], False) for m in assembly.plan.members if m.role is Role.AT]
        uploads = [result for result in execute(round_of(state, assembly.plan), jobs) if isinstance(result, Upload)]
    assert len({upload.samples for upload in uploads}) == 1  # so their mean is the plain one
    of_at = torch.stack([upload.shared["network.fc1.weight"] for upload in uploads]).mean(0)
    torch.testing.assert_close(ends[1e6], of_at, rtol=0, atol=1e-6)
    assert not torch.allclose(ends[1.0], of_at, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"at_loss": "trades"},
        {"at_loss": "mart"},
        {"at_share": 0.5},
        {"logits": "calibrated"},
    ],
)
def test_every_option_of_the_loss_changes_what_is_trained(options: dict[str, Any], tiny: Make, tmp_path: Path) -> None:
    ends = []
    for number, given in enumerate([options, {}]):
        fedrbn.run(small(tiny, "fedrbn", **given), tmp_path / str(number))
        checkpoint = RunDirectory.open(tmp_path / str(number)).checkpoint("last")
        assert checkpoint is not None
        ends.append(checkpoint.state.shared["network.fc1.weight"])
    assert not torch.equal(*ends)
    written = RunDirectory.open(tmp_path / "0").experiment().method.model_dump()
    assert options.items() <= written.items()


def test_slack_is_an_aggregation_with_its_own_setting(tiny: Make, tmp_path: Path) -> None:
    ends = []
    for number, train in enumerate(
        [{"aggregation": "slack"}, {"aggregation": "slack", "slack": 0.0}, {"aggregation": "mean"}]
    ):
        fedrbn.run(small(tiny, "fatavg", train={**train, "rounds": 1}), tmp_path / str(number))
        checkpoint = RunDirectory.open(tmp_path / str(number)).checkpoint("last")
        assert checkpoint is not None
        ends.append(checkpoint.state.shared["network.fc1.weight"])
    assert not torch.equal(ends[0], ends[1])
    assert torch.equal(ends[1], ends[2])
    with pytest.raises(ConfigError, match=r"train\.slack = 0\.1 with train\.aggregation = 'mean'"):
        assemble(small(tiny, "fatavg", train={"slack": 0.1}))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fatbn-free", {"replays": 2}),
        ("fedrob", {"affine_steps": 2}),
        ("fatmeta", {}),
        ("finetune", {}),
        ("fedrbn", {"momentum": 0.5}),
    ],
)
def test_methods_with_memory_or_phases_resume_exactly(
    name: str, options: dict[str, Any], tiny: Make, tmp_path: Path
) -> None:
    """Stopped after round 2 with all clients of round 3 done: they had gone on, and have to go back."""
    train = {"rounds": {"fatbn-free": 6, "finetune": 2}.get(name, 3)}
    options = {**options, **({"ft_iterations": 1} if name == "finetune" else {})}
    experiment = small(tiny, name, train=train, **options)
    fedrbn.run(experiment, tmp_path / "whole")
    interrupted = tmp_path / "interrupted"

    class Stopping(Noting):
        def answered(self, result: Result) -> None:
            if result.round == 2 and self.rounds == [1, 2] and result.client.endswith("-1"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedrbn.run(experiment, interrupted, watcher=Stopping())
    memories = sorted(path.name for path in interrupted.glob("clients/plain-0/*"))
    assert memories == (["1.safetensors", "2.safetensors", "3.safetensors"] if name in ("fatbn-free", "fedrob") else [])
    fedrbn.resume(interrupted)
    assert_same_run(tmp_path / "whole", interrupted)
    for kept in (tmp_path / "whole").glob("clients/*/*"):
        assert kept.read_bytes() == (interrupted / kept.relative_to(tmp_path / "whole")).read_bytes()


def test_only_at_users_remember_and_force_forgets(tiny: Make, tmp_path: Path) -> None:
    fedrbn.run(small(tiny, "fatavg-free"), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "clients").iterdir()} == {"plain-0", "pen-0"}
    fedrbn.run(small(tiny, "fatavg"), tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "clients").exists()


def test_fatmeta_is_evaluated_after_one_step_on_the_clients_own_data(tiny: Make, tmp_path: Path) -> None:
    """The record's accuracy is that of the adapted network, which differs from the one that the server has."""
    experiment = tiny(method={"name": "fatmeta", "inner_lr": 0.5}, train={"rounds": 1, "validate_every": 1})
    record = fedrbn.run(experiment, tmp_path / "run")
    trained = fedrbn.load(tmp_path / "run")
    changed = []
    for client in assemble(experiment).federation.clients:
        x, y = client.test.pixels(slice(None))
        member = trained.plan.members[trained.clients.index(client.id)]
        branch = predicting_branch(trained.plan, trained.state, member)
        with torch.no_grad():
            right = trained.adapted(client)(x, branch).argmax(1) == y
            changed.append(not torch.equal(right, trained.dual_client(client.id)(x, branch).argmax(1) == y))
        assert record["users"][client.id]["sa"] == right.double().mean().item()
    assert any(changed)


def test_fedrob_refuses_large_images_before_a_directory_is_made(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2352² numbers of 4 bytes; with less memory to spare 28 pixels are large."""
    monkeypatch.setattr(fedrbn.federated.training.affine, "LARGEST", 2**20)
    with pytest.raises(ConfigError, match=r"method 'fedrob'.* need 22,127,616 bytes .* data.image_size to \d+ or less"):
        fedrbn.run(small(tiny, "fedrob"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_finetuning_chooses_among_fine_tuned_states(tiny: Make, tmp_path: Path) -> None:
    record = fedrbn.run(small(tiny, "finetune"), tmp_path / "run")
    assert record["round"] > 2, "rounds 1 and 2 are the AT users' alone"
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    roles = {member.id: member.role for member in fedrbn.load(tmp_path / "run").plan.members}
    assert [{roles[client] for client in record["clients"]} for record in rounds] == [{Role.AT}] * 2 + [{Role.ST}] * 2


def test_too_many_frozen_layers_are_refused_at_once(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"method.freeze = 6 for a network of 6 layers"):
        assemble(small(tiny, "finetune", freeze=6))


def test_divergence_in_free_at_is_reported(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"FloatingPointError.*train\.lr"):
        fedrbn.run(small(tiny, "fatavg-free", train={"lr": 1e30}), tmp_path / "run")
