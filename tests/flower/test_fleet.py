"""Nodes join late, leave, come back, fail, lie; the server bars, drops and flags; a killed run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedrbn
from fedrbn.config import ConfigError, MethodConfig
from fedrbn.data.samples import Samples
from fedrbn.errors import StorageError
from fedrbn.flower import wire
from fedrbn.flower.client_app import app
from fedrbn.flower.handshake import Response
from fedrbn.flower.instructions import EvaluateOrder, TrainOrder, setup_for
from fedrbn.flower.log import events
from fedrbn.flower.serving import serve
from fedrbn.flower.settings import NodeConfig
from fedrbn.flower.site import SiteData
from fedrbn.runs import load
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Role

from .in_process import InProcessGrid
from .small import CLIENTS, NODES, experiment, grid, last, run_config, served
from .test_in_process import assert_same

Step = Callable[[Message, Context], Message]


def tampered(change: Callable[[Message, Context, Step], Message]) -> ClientApp:
    """The ClientApp with something that `change` does around it, for every message."""
    other = ClientApp()
    for kind in (other.query, other.train, other.evaluate):
        kind()(lambda message, context: change(message, context, app))
    return other


def order_of(message: Message) -> TrainOrder | None:
    """The training order of a message, if it is one."""
    is_training = message.metadata.message_type == "train"
    return wire.value_of(message.content, "order", TrainOrder) if is_training else None


def at_round(number: int, act: Callable[[], object]) -> ClientApp:
    """The ClientApp that also does something when the first client trains in a round, counted from 1."""

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and order.round.number + 1 == number and order.job.client == CLIENTS[0]:
            act()
        return do(message, context)

    return tampered(change)


def test_a_node_that_joins_late_is_served(tmp_path: Path) -> None:
    """It joins during round 1, so it takes part from round 2 on: with θ, and with a BN_a estimated for it at once."""
    seen: dict[int, dict[str, Any]] = {}

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and order.job.client == "plain-0" and order.round.number == 0:
            nodes.join(99, {"partition-id": 3})
        if order is not None and order.job.client == "pen-1":
            personal = wire.opened(message.content, "personal", 10**6)
            seen[order.round.number] = {"calibrate": order.job.calibrate, **personal}
        return do(message, context)

    nodes = grid(tampered(change), nodes={node: part for node, part in NODES.items() if part != 3})
    record = served(tmp_path, "run", experiment(), nodes, nodes=3)
    assert sorted(seen) == [1, 2]
    assert seen[1]["calibrate"] is True, "ST, with a BN_a to calibrate with in its first round"
    noised = {name: value for name, value in seen[1].items() if ".noised.running_mean" in name}
    assert noised
    assert all(value.any() for value in noised.values()), "an untrained BN_a would be zero"
    assert record["users"]["pen-1"]["predicts"] == "noised"
    assert set(record["users"]) == set(CLIENTS)
    joined = [event["client"] for event in events(tmp_path / "run" / "events.jsonl", "joined")]
    assert joined[-1] == "pen-1"
    assert load.load(tmp_path / "run").client("pen-1") is not None, "also if validation chose an earlier round"


def test_a_node_that_leaves_and_comes_back_goes_on_with_its_own_batch_norm(tmp_path: Path) -> None:
    kept: dict[str, torch.Tensor] = {}
    got: dict[str, torch.Tensor] = {}

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        reply = do(message, context)
        if order is None:
            return reply
        if (order.round.number, order.job.client) == (0, "pen-1"):
            kept.update(wire.opened(reply.content, "personal", 10**6))
            nodes.leave(20)
        if (order.round.number, order.job.client) == (1, "pen-0"):
            nodes.join(77, {"partition-id": 3})
        if (order.round.number, order.job.client) == (2, "pen-1"):
            got.update(wire.opened(message.content, "personal", 10**6))
        return reply

    nodes = grid(tampered(change))
    served(tmp_path, "run", experiment(), nodes)
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert ["pen-1" in record["clients"] for record in rounds] == [True, False, True]
    assert "not connected" in str(rounds[1]["failures"])
    assert kept
    assert all(torch.equal(value, got[name]) for name, value in kept.items())
    log = tmp_path / "run" / "events.jsonl"
    assert [event["client"] for event in events(log, "left")] == ["pen-1"]
    assert events(log, "joined")[-1]["again"] is True


def test_a_round_that_waits_for_everybody_finds_a_node_that_has_come_back(tmp_path: Path) -> None:
    """pen-1 leaves in round 1 and comes back, under another node id, while round 2 waits for it."""

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        reply = do(message, context)
        if order is not None and (order.round.number, order.job.client) == (0, "pen-1"):
            nodes.leave(20)
        if order is not None and (order.round.number, order.job.client) == (1, "pen-0"):
            nodes.join(77, {"partition-id": 3})
        return reply

    nodes = grid(tampered(change))
    faults = {"min_clients": 1.0, "on_too_few": "wait", "wait_seconds": 0.01}
    chosen = experiment(train={"rounds": 2, "validate_every": 2}, faults=faults)
    served(tmp_path, "run", chosen, nodes)
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert [sorted(record["clients"]) for record in rounds] == [sorted(CLIENTS)] * 2
    fedrbn.run(chosen, tmp_path / "embedded")
    ours, theirs = last(tmp_path / "run"), last(tmp_path / "embedded")
    for name, tensor in theirs.shared.items():  # its update is added last, so sums differ by rounding
        torch.testing.assert_close(ours.shared[name], tensor)


def test_a_node_offers_what_it_has_kept_to_a_server_that_has_lost_it(tmp_path: Path) -> None:
    """The server's files of the client are gone; what the client has kept on its own disk is what it goes on with."""
    chosen = experiment(train={"rounds": 2, "validate_every": 2})
    config = run_config(tmp_path, "run", chosen)
    with pytest.raises(Killed):
        serve(grid(at_round(2, _kill)), config)
    directory = RunDirectory.open(tmp_path / "run")
    state, best = last(tmp_path / "run"), None
    bn = next(name for name in state.personal["pen-1"] if name.endswith("clean.running_mean"))
    trained = state.personal.pop("pen-1")[bn]
    state.reported.pop("pen-1")
    directory.save("last", state, best)
    got: dict[str, torch.Tensor] = {}

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and order.job.client == "pen-1":
            got.update(wire.opened(message.content, "personal", 10**6))
        return do(message, context)

    serve(grid(tampered(change)), config)
    assert torch.equal(got[bn], trained)


class Killed(BaseException):
    """Stands for the end of the server's program, which nothing catches."""


def _kill() -> None:
    raise Killed


def test_a_killed_server_resumes_with_the_same_numbers(tmp_path: Path) -> None:
    """Killed in the middle of round 2, started again with the same directory: as if nothing had happened."""
    chosen = experiment()
    fedrbn.run(chosen, tmp_path / "embedded")
    config = run_config(tmp_path, "run", chosen)
    with pytest.raises(Killed):
        serve(grid(at_round(2, _kill)), config)
    assert last(tmp_path / "run").round == 1
    record = serve(grid(nodes={1: 3, 2: 2, 3: 1, 4: 0}), config)
    assert_same(last(tmp_path / "run"), last(tmp_path / "embedded"))
    assert serve(InProcessGrid(app, {}), config) == record, "a finished run needs no nodes"


def test_a_server_killed_before_its_evaluation_still_looks_who_is_there_and_who_is_barred(tmp_path: Path) -> None:
    def change(message: Message, context: Context, do: Step) -> Message:
        if order_of(message) is None and RunDirectory.open(tmp_path / "run").records("rounds.jsonl"):
            raise Killed
        return do(message, context)

    three = {node: part for node, part in NODES.items() if part != 3}
    config = run_config(tmp_path, "run", experiment(federation={"validation": 0.0}), nodes=3)
    with pytest.raises(Killed):
        serve(grid(tampered(change), nodes=three), config)
    assert last(tmp_path / "run").round == 3, "all rounds are over"
    _write(tmp_path / "run" / "control.toml", 'bar = ["plain-1"]\n')
    record = serve(grid(), config)
    assert set(record["users"]) == {"plain-0", "pen-0", "pen-1"}
    assert record["barred"] == ["plain-1"]


@pytest.mark.parametrize(
    "noise", [{"update_noise": 0.001}, {"statistics_noise": 0.001}, {"update_noise": 0.001, "update_at": "server"}]
)
def test_noise_that_others_could_subtract_is_refused(noise: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can subtract noise that comes from it\. Set privacy\.secret = true"):
        served(tmp_path, "run", experiment(privacy=noise))


def test_a_deployment_with_secret_noise_accounts_for_it(tmp_path: Path) -> None:
    one = {"train": {"rounds": 1, "validate_every": 1}}
    assert served(tmp_path, "run", experiment(privacy={"update_noise": 0.001, "secret": True}, **one))["privacy"]


def test_another_experiment_in_the_directory_is_refused(tmp_path: Path) -> None:
    served(tmp_path, "run", experiment(train={"rounds": 1, "validate_every": 1}))
    with pytest.raises(StorageError, match="holds another experiment"):
        served(tmp_path, "run", experiment(train={"rounds": 2, "validate_every": 2}))


def test_a_node_that_raises_costs_its_update_only(tmp_path: Path) -> None:
    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and (order.round.number, order.job.client) == (1, "plain-1"):
            raise OSError("disk is gone")
        return do(message, context)

    record = served(tmp_path, "run", experiment(), grid(tampered(change)))
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert [sorted(each["clients"]) == sorted(CLIENTS) for each in rounds] == [True, False, True]
    assert "disk is gone" in str(rounds[1]["failures"])
    assert set(record["users"]) == set(CLIENTS), "it is there again, and served"


def test_nodes_that_are_gone_at_the_end_are_noted_and_the_others_are_evaluated(tmp_path: Path) -> None:
    nodes = grid(at_round(3, lambda: [nodes.leave(node) for node in (20, 30)]))
    record = served(tmp_path, "run", experiment(train={"validate_every": 2}), nodes)
    assert set(record["users"]) == {"plain-0", "plain-1"}
    assert set(record["unanswered"]) == {"pen-0", "pen-1"}
    assert set(record["domains"]) == {"plain"}, "a domain of which nobody is left has no accuracy"
    assert record["worst_domain"]["sa"] == record["domains"]["plain"]["sa"]


@pytest.mark.parametrize("failures", [1, 2])
def test_the_final_evaluation_asks_a_node_that_fails_once_more(failures: int, tmp_path: Path) -> None:
    asked: list[str] = []

    def change(message: Message, context: Context, do: Step) -> Message:
        if message.metadata.message_type == "evaluate":
            job = wire.value_of(message.content, "order", EvaluateOrder).job
            if job.part == "test":
                asked.append(job.client)
            if asked.count("pen-0") <= failures and (job.client, job.part) == ("pen-0", "test"):
                raise OSError("disk is gone")
        return do(message, context)

    record = served(tmp_path, "run", experiment(train={"rounds": 1, "validate_every": 1}), grid(tampered(change)))
    assert sorted(asked) == sorted([*CLIENTS, "pen-0"]), "the others are asked once"
    lost = {"pen-0"} if failures == 2 else set()
    assert list(record["users"]) == [client for client in CLIENTS if client not in lost]
    assert record.get("unanswered", {}).keys() == lost


def test_a_node_that_does_not_answer_in_time_is_left_out(tmp_path: Path) -> None:
    class Silent(InProcessGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            return [
                reply
                for reply in super().pull_messages(message_ids)
                if reply.metadata.src_node_id != 20 or reply.metadata.message_type != "train"
            ]

    nodes = Silent(app, {node: {"partition-id": part} for node, part in NODES.items()})
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, faults={"deadline_seconds": 6})
    served(tmp_path, "run", chosen, nodes)
    (record,) = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert sorted(record["clients"]) == sorted(set(CLIENTS) - {"pen-1"})
    assert "no answer within 6 s" in str(record["failures"])


def test_the_server_bars_a_node_and_drops_a_donor_between_rounds(tmp_path: Path) -> None:
    """From round 2 on pen-1 takes no part; BN_a of plain-1 is then that of plain-0 alone, because pen-0 is dropped."""
    path = tmp_path / "run" / "control.toml"
    nodes = grid(at_round(1, lambda: _write(path, 'bar = ["pen-1"]\ndrop_donors = ["pen-0"]\n')))
    served(tmp_path, "run", experiment(), nodes)
    rounds = RunDirectory.open(tmp_path / "run").records("rounds.jsonl")
    assert ["pen-1" in record["clients"] for record in rounds] == [True, False, False]
    assert [record.get("barred") for record in rounds] == [None, ["pen-1"], ["pen-1"]]
    assert rounds[1]["silenced"] == ["pen-0"]
    state = last(tmp_path / "run")
    noised = [name for name in state.personal["plain-1"] if ".noised.running" in name]
    assert noised
    for name in noised:
        assert torch.equal(state.personal["plain-1"][name], state.personal["plain-0"][name]), name


def test_a_broken_control_file_is_reported_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "control.toml"
    nodes = grid(at_round(1, lambda: _write(path, "bar = [1, 2")))
    served(tmp_path, "run", experiment(train={"rounds": 2, "validate_every": 2}), nodes)
    refused = events(tmp_path / "run" / "events.jsonl", "control refused")
    assert len(refused) == 2, "before round 2 and before the evaluation"
    assert all("expected bar and drop_donors" in event["reason"] for event in refused)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def test_a_client_that_claims_at_but_trains_on_clean_images_is_flagged(tmp_path: Path) -> None:
    """pen-1 says AT and has its attack change nothing, so its BN_a is its BN_c; the other three attack."""

    def change(message: Message, context: Context, do: Step) -> Message:
        order = order_of(message)
        if order is not None and order.job.client == "pen-1":
            assert order.setup.attack is not None
            lazy = order.setup.attack.model_copy(update={"eps": 0.0, "step_size": 0.0, "steps": 1})
            setup = order.setup.model_copy(update={"attack": lazy})
            records = RecordDict(dict(message.content))
            records["order"] = wire.text(order.model_copy(update={"setup": setup}))
            message.content = records
        return do(message, context)

    nodes = grid(tampered(change), role="AT")
    chosen = experiment(train={"rounds": 2, "validate_every": 2})
    record = served(tmp_path, "run", chosen, nodes, roles="budget")
    assert list(record["flagged"]) == ["pen-1"]
    assert "as after standard training" in record["flagged"]["pen-1"]
    assert [event["client"] for event in events(tmp_path / "run" / "events.jsonl", "flagged")] == ["pen-1"]


def test_roles_follow_what_nodes_can_afford(tmp_path: Path) -> None:
    """One says AT, one says ST, one is fast, one is slow: 10⁶ MACs per second, where a round of AT needs ~10⁹.

    The slow one still has time to train some of its batches adversarially."""
    budgets: dict[int, Mapping[str, Any]] = {
        40: {"partition-id": 0, "role": "ST"},
        10: {"partition-id": 1, "role": "AT"},
        30: {"partition-id": 2, "macs-per-second": 1e12},
        20: {"partition-id": 3, "macs-per-second": 1e6},
    }
    chosen = experiment(train={"rounds": 1, "validate_every": 1}, faults={"deadline_seconds": 60})
    served(tmp_path, "run", chosen, InProcessGrid(app, budgets), roles="budget")
    members, _, _ = RunDirectory.open(tmp_path / "run").description()
    shares = {member.id: member.duty.at_share for member in members}
    slow = shares.pop("pen-1")
    assert shares == {"plain-0": 0, "plain-1": 1, "pen-0": 1}
    assert 0 < slow < 1


CLASSES = tuple("0123456789")


def own_data(node_config: Mapping[str, Any]) -> SiteData:
    """A site's own factory: its key `seed` says which images it has."""
    random = torch.Generator().manual_seed(int(node_config["seed"]))

    def part(count: int) -> Samples:
        images = torch.randint(0, 256, (count, 3, 28, 28), generator=random, dtype=torch.uint8)
        return Samples(images, torch.randint(0, 10, (count,), generator=random))

    return SiteData("clinic", CLASSES, part(6 + int(node_config["seed"])), part(3), part(4), label="Clinic")


def site(name: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"data": "flower.test_fleet:own_data", "name": name, "seed": seed, **more}


def test_sites_bring_their_own_data(tmp_path: Path) -> None:
    nodes = InProcessGrid(app, {7: site("north", 1, role="AT"), 5: site("south", 2)})
    chosen = experiment(train={"rounds": 2, "validate_every": 2})
    record = served(tmp_path, "run", chosen, nodes, nodes=2, roles="budget")
    members, classes, image_shape = RunDirectory.open(tmp_path / "run").description()
    assert [(m.id, m.domain, m.role, m.samples) for m in members] == [
        ("north", "clinic", Role.AT, 7),
        ("south", "clinic", Role.ST, 8),
    ]
    assert (classes, image_shape) == (CLASSES, (3, 28, 28))
    assert record["labels"] == {"clinic": "Clinic"}
    assert record["samples"]["sa"] == 8, "four test images each"


def test_nodes_that_do_not_agree_are_refused_with_a_reason(tmp_path: Path) -> None:
    """A second node of the same client, another version, another network; the four good ones train."""

    def change(message: Message, context: Context, do: Step) -> Message:
        reply = do(message, context)
        if context.node_id in (98, 97):
            content = wire.value_of(reply.content, "response", Response).content
            changes = {98: {"version": "0.0.1", "client": "old"}, 97: {"fingerprint": "0" * 64, "client": "odd"}}
            changed = content.model_copy(update=changes[context.node_id])
            reply.content["response"] = wire.text(Response(content=changed))
        return reply

    nodes = grid(tampered(change), nodes={**NODES, 99: 3, 98: 3, 97: 3})
    chosen = experiment(train={"rounds": 1, "validate_every": 1})
    served(tmp_path, "run", chosen, nodes, nodes=4)
    reasons = {event["node"]: event["reason"] for event in events(tmp_path / "run" / "events.jsonl", "refused")}
    assert set(reasons) == {"97", "98", "99"} or set(reasons) == {"97", "98", "20"}
    assert "got fedrbn 0.0.1 at the node" in reasons["98"]
    assert "Install the same version" in reasons["98"]
    assert "got network 000000000000" in reasons["97"]
    assert any("a second node" in reason for reason in reasons.values())


def test_a_site_with_other_classes_is_refused(tmp_path: Path) -> None:
    nodes = InProcessGrid(app, {7: site("north", 1), 5: site("south", 2)})
    chosen = experiment(train={"rounds": 1, "validate_every": 1})
    with pytest.raises(ConfigError, match="got 0 nodes that agree"):
        served(tmp_path, "run", chosen, nodes, nodes=2, classes="cat,dog")
    reasons = [event["reason"] for event in events(tmp_path / "run" / "events.jsonl", "refused")]
    assert len(reasons) == 2
    assert all("got classes 0, 1, 2" in reason and "expected cat, dog" in reason for reason in reasons)
    (stopped,) = events(tmp_path / "run" / "events.jsonl", "stopped")
    assert "got 0 nodes that agree" in stopped["reason"]


def test_too_few_nodes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"got 1 nodes that take part within 0\.2 s; expected flower\.nodes = 4"):
        served(tmp_path, "run", experiment(), grid(nodes={1: 0}), wait=0.2)


def test_code_that_a_site_has_not_allowed_is_not_imported(tmp_path: Path) -> None:
    # the server itself would resolve the method: the node's refusal is what is tested, so it is asked directly
    setup = setup_for(Role.ST, experiment(train={"rounds": 1}), "0" * 32)
    setup = setup.model_copy(update={"method": MethodConfig(name="flower.test_fleet:never")})
    with pytest.raises(ConfigError, match="this site has not allowed it"):
        NodeConfig.read({"partition-id": 0}).check(setup)
    NodeConfig.read({"partition-id": 0, "allow": "flower.test_fleet:never, other:thing"}).check(setup)
