"""A site: its part of the data, what it keeps, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import RecordDict

from fedrbn.config import ConfigError
from fedrbn.federated.aggregation.layout import Local, layout
from fedrbn.federated.assemble import assemble
from fedrbn.flower import wire
from fedrbn.flower.instructions import setup_for
from fedrbn.flower.settings import NodeConfig
from fedrbn.flower.site import SiteMemory, fingerprint, local_federation, names_of, network
from fedrbn.types import Role

from .small import CLIENTS, experiment

SETUP = setup_for(Role.ST, experiment(), "0" * 32)


def test_a_part_is_the_part_of_the_embedded_run() -> None:
    everybody = assemble(experiment()).federation.clients
    for number, theirs in enumerate(everybody):
        node = NodeConfig.read({"partition-id": number})
        (ours,) = local_federation(node, {}, SETUP).clients
        assert (ours.id, ours.domain) == (CLIENTS[number], theirs.domain)
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(ours, part).images, getattr(theirs, part).images)
            assert torch.equal(getattr(ours, part).labels, getattr(theirs, part).labels)


not_site_data = {"domain": "x"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "without data; expected data="),
        ({"partition-id": 4}, "got partition-id 4; expected 0 to 3"),
        ({"data": "flower.test_site:not_site_data"}, "without a name"),
        ({"data": "flower.test_site:not_site_data", "name": "x"}, "which gives dict"),
        ({"data": "nowhere.at.all:x", "name": "x"}, "cannot be imported"),
    ],
)
def test_a_site_without_usable_data_says_so(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        local_federation(NodeConfig.read(given), given, SETUP)


def test_a_folder_of_the_servers_choice_is_not_read() -> None:
    setup = setup_for(Role.ST, experiment(data={"name": "/etc", "domains": None}), "0" * 32)
    with pytest.raises(ConfigError, match="got data '/etc' from the server"):
        NodeConfig.read({"partition-id": 0}).check(setup)


def test_the_fingerprint_tells_networks_apart() -> None:
    node = NodeConfig.read({"partition-id": 0})
    federation = local_federation(node, {}, SETUP)
    net = network(node, SETUP, federation)
    names = names_of(net, SETUP)
    usual = fingerprint(net, names)
    assert usual == fingerprint(assemble(experiment()).net, names), "faster kernels are the same network"
    wider = setup_for(Role.ST, experiment(model={"width": 1 / 8}), "0" * 32)
    assert fingerprint(network(node, wider, federation), names) != usual
    assert fingerprint(net, layout(net, Local.STATISTICS)) != usual, "what is shared is part of it"


def test_what_is_kept_is_in_flowers_state_and_survives_it_on_disk(tmp_path: Path) -> None:
    node = NodeConfig.read({"state": str(tmp_path)})
    memory = SiteMemory.of(node, SETUP, "pen-0")
    state = RecordDict()
    assert memory.recall(state) is None
    memory.keep(state, 3, {"mean": torch.tensor([1.5, -2.0])})
    for place in (state, RecordDict()):
        found = memory.recall(place)
        assert found is not None
        rounds, record = found
        assert rounds == 3
        tensors = wire.opened(RecordDict({"personal": record}), "personal", 10_000)
        assert torch.equal(tensors["mean"], torch.tensor([1.5, -2.0]))
    other = SiteMemory.of(node, SETUP.model_copy(update={"token": "1" * 32}), "pen-0")
    assert other.recall(RecordDict()) is None, "another run's"
    (file,) = tmp_path.rglob("batch-norm.safetensors")
    file.write_bytes(b"damaged")
    assert memory.recall(RecordDict()) is None
