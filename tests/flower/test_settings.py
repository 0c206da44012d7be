"""The run config becomes our experiment; the app's own file offers every setting but the adversary's."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import get_fused_config_from_dir

from fedrbn.config import ConfigError, Experiment
from fedrbn.flower.instructions import setup_for
from fedrbn.flower.log import events
from fedrbn.flower.settings import FlowerConfig, NodeConfig, experiment_of
from fedrbn.types import Role

from .small import experiment, grid, served

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import flower_app  # noqa: E402

APP = ROOT / "flower" / "pyproject.toml"


def test_settings_go_on_top_of_the_servers_file(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('[train]\nrounds = 7\nlr = 0.5\n[attack]\nsteps = 3\n[method]\nname = "fatbn"\n')
    experiment, flower = experiment_of(
        {
            "flower.config": str(file),
            "flower.nodes": 3,
            "train.rounds": 9,
            "train.schedule": "",
            "federation.at": '["plain-0", "pen"]',
            "method.name": "fatavg",
            "attack.name": "",
        }
    )
    assert (experiment.train.rounds, experiment.train.lr, experiment.attack.steps) == (9, 0.5, 3)
    assert experiment.federation.at == ("plain-0", "pen")
    assert experiment.train.schedule == "constant", "an empty text leaves a setting open"
    assert experiment.method.name == "fatavg"
    assert experiment.method.local == "nothing", "resolved, so that equal runs have equal keys"
    assert (flower.nodes, flower.transport) == (3, "float32")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"flower.node": 3}, "did you mean flower.nodes"),
        ({"flower.nodes": 0}, "flower.nodes = 0"),
        ({"flower.transport": "int8"}, "flower.transport"),
        ({"trian.rounds": 3}, "did you mean 'train'"),
        ({"train.round": 3}, "did you mean 'rounds'"),
        ({"train.rounds": "1,2"}, "several values for train.rounds"),
        ({"flower.config": "/nowhere.toml"}, "cannot be read"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, int | str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment_of(given)


def test_the_apps_settings_are_up_to_date() -> None:
    text = APP.read_text(encoding="utf-8")
    assert text == flower_app.written(text), "write them anew: python tools/flower_app.py"


def test_the_app_offers_every_setting_but_the_adversarys() -> None:
    """Flower hands the app's file to every node."""
    app = tomllib.loads(APP.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    offered = app["config"]
    own = offered.pop("flower")
    assert own == FlowerConfig().model_dump()
    assert {value for section in offered.values() for value in section.values()} == {""}
    assert set(Experiment.model_fields) - offered.keys() == {"attack", "malice"}
    assert "rounds" in offered["train"]
    assert app["components"] == {
        "serverapp": "fedrbn.flower.server_app:app",
        "clientapp": "fedrbn.flower.client_app:app",
    }


def test_flower_takes_the_settings_that_the_app_offers_and_no_others() -> None:
    """By Flower's own rule, as in flwr run --run-config."""
    given = get_fused_config_from_dir(APP.parent, {"train.rounds": 9, "flower.nodes": 3})
    experiment, flower = experiment_of(given)
    assert (experiment.train.rounds, flower.nodes) == (9, 3)
    assert experiment.train.lr == experiment_of({})[0].train.lr, "what is not given has the schema's default"
    with pytest.raises(ValueError, match="is not present"):
        get_fused_config_from_dir(APP.parent, {"attack.steps": 3})


def test_a_node_config_is_read_with_units_and_own_keys() -> None:
    node = NodeConfig.read(
        {
            "partition-id": 2,
            "num-partitions": 4,
            "memory": "512 MB",
            "macs-per-second": 2e9,
            "role": "AT",
            "theirs": "x",
        }
    )
    assert (node.partition_id, node.memory, node.macs_per_second, node.role) == (2, 512e6, 2e9, Role.AT)


@pytest.mark.parametrize(
    "given", [{"partition-id": -1}, {"role": "BOSS"}, {"name": "../x"}, {"probe": 0.0}, {"memory": "much"}]
)
def test_a_wrong_node_config_is_refused(given: dict[str, int | str]) -> None:
    with pytest.raises(ConfigError, match="in the node config; expected another value"):
        NodeConfig.read(given)


def test_where_a_client_keeps_what_it_remembers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert NodeConfig.read({"state": "/var/lib/site"}).state_folder() == Path("/var/lib/site")
    assert NodeConfig.read({}).state_folder() == tmp_path / "state", "$FEDRBN_STATE"
    monkeypatch.delenv("FEDRBN_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/somebody/.state")
    assert NodeConfig.read({}).state_folder() == Path("/home/somebody/.state/fedrbn")


ENOUGH = {"statistics_noise": 2.0, "update_noise": 1.0, "secret": True}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"statistics_noise": None}, r"got privacy\.statistics_noise: none at the client"),
        ({"update_noise": 0.9}, r"got privacy\.update_noise: 0\.9 .* expected at least require-noise = 1"),
        ({"update_at": "server"}, r"got privacy\.update_noise: none at the client"),
        ({"secret": None}, r"expected privacy\.secret = true"),
    ],
)
def test_a_node_takes_no_part_without_the_noise_it_wants(changes: dict[str, Any], reason: str | None) -> None:
    setup = setup_for(Role.ST, experiment(privacy={**ENOUGH, **changes}), "0" * 32)
    NodeConfig.read({"partition-id": 0}).check(setup)
    wants = NodeConfig.read({"partition-id": 0, "require-noise": 1.0})
    if reason is None:
        wants.check(setup)
        return
    with pytest.raises(ConfigError, match=reason):
        wants.check(setup)


def test_such_a_node_is_refused_at_the_handshake_and_does_no_job(tmp_path: Path) -> None:
    """Of four nodes, all of which want noise, none introduces itself to a run without it."""
    with pytest.raises(ConfigError, match=r"got 0 nodes that take part"):
        served(tmp_path, "run", experiment(), grid(**{"require-noise": 1.0}), wait=0.05)
    reasons = {event["reason"] for event in events(tmp_path / "run/events.jsonl", "refused")}
    assert len(reasons) == 1
    assert "which this site requires" in reasons.pop()
