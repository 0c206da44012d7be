"""How far FedRob's maps move pixels, measured in a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import fedrbn
from fedrbn.config import Experiment
from fedrbn.runs.directory import RunDirectory

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import affine_shift  # noqa: E402


@pytest.fixture(scope="module")
def run(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One AT user, of domain pen, and one round."""
    few = {"users_per_domain": 1, "at": ["pen"], "fraction": 0.02}
    path = tmp_path_factory.mktemp("runs") / "fedrob"
    data = {"domains": ["pen", "plain"], "image_size": 8}
    fedrbn.run(tiny(method={"name": "fedrob"}, train={"rounds": 1}, federation=few, data=data), path)
    return path


def test_maps_to_the_same_to_black_and_to_white(run: Path) -> None:
    """The identity moves nothing. Λ = 0 blackens, which moves a pixel by x; δ = 1 whitens, by 1 − x: 255/255 in all."""
    (file,) = RunDirectory.open(run).clients.glob("*/1.safetensors")
    kept = safetensors.torch.load_file(file)
    assert not torch.equal(kept["matrix"], torch.eye(len(kept["shift"]))), "the run has moved it"
    (before,) = affine_shift.shifts(run)
    assert before[0] == "pen"
    assert before[1] > 0
    identity = {"matrix": torch.eye(len(kept["shift"])), "shift": torch.zeros(len(kept["shift"]))}
    file.write_bytes(safetensors.torch.save(identity))
    assert list(affine_shift.shifts(run)) == [("pen", 0.0)]
    file.write_bytes(safetensors.torch.save({**identity, "matrix": 0 * identity["matrix"]}))  # every image black
    (black,) = affine_shift.shifts(run)
    file.write_bytes(safetensors.torch.save({**identity, "shift": identity["shift"] + 1}))  # every image white
    (white,) = affine_shift.shifts(run)
    assert black[1] + white[1] == pytest.approx(255, rel=1e-5)  # x and 1 − x


def test_a_run_of_another_method_is_refused(trained: Path) -> None:
    with pytest.raises(SystemExit, match="expected a run of method fedrob"):
        affine_shift.main([str(trained)])
