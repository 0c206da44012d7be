"""Hostile network messages: what a malicious server may order a client, and a malicious client reply or introduce."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st

from fedrbn import config
from fedrbn.attacks import attack_named, from_config
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.assemble import build_network, build_plan
from fedrbn.federated.options import configure, resolved
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Job, Round, Train, Upload
from fedrbn.federated.server import initial_state
from fedrbn.federated.uploads.validation import LARGEST_STATISTIC, UploadCheck, length, scratch
from fedrbn.flower import wire
from fedrbn.flower.claim_checks import capped_samples
from fedrbn.flower.client_app import affordable
from fedrbn.flower.handshake import (
    Agreement,
    Budget,
    Introduction,
    Response,
    afforded_duties,
    too_large,
    wrong_part,
)
from fedrbn.flower.instructions import EvaluateOrder, Order, TrainOrder, setup_for
from fedrbn.flower.messages import Parts, job_of, order_records, reply_records, result_of, shared_record
from fedrbn.flower.newcomers import with_newcomers
from fedrbn.flower.questions import attacks_in
from fedrbn.flower.registry import Identity, Registry
from fedrbn.flower.settings import NodeConfig
from fedrbn.nets.state import tensors
from fedrbn.types import Branch, Member, Role
from fuzz.cases import REFUSED, Subject
from fuzz.configs import WORKLOAD
from fuzz.mutations import another_safetensors, another_tree, as_json, mutated
from fuzz.trained import SETTINGS

CHOSEN = resolved(config.make(SETTINGS))
METHOD = configure(CHOSEN.method, from_config(CHOSEN.attack))
NET = build_network(CHOSEN, METHOD, 10, (3, 28, 28))
NAMES = layout(NET, METHOD.local)
PARTS = Parts.of(NET, NAMES)
SHARED = {name: tensors(NET)[name].clone() for name in NAMES.shared}
PERSONAL = {name: tensors(NET)[name].clone() for name in NAMES.personal}
ROUND = Round(1, 1, METHOD, SHARED, lr=0.05, batch_size=32, local_epochs=1)
MEMBER = Member("pen-0", "pen", Role.AT.duty, 20)
CHECK = UploadCheck(
    MEMBER,
    SHARED | PERSONAL,
    {name: length(value) for name, value in (SHARED | PERSONAL).items() if value.is_floating_point()},
    NAMES,
    max_update=10.0,
    scratch=scratch(),
)
SETUP = setup_for(Role.AT, CHOSEN, "0123456789abcdef" * 2)
TRAIN = Train("pen-0", Role.AT.duty, PERSONAL, calibrate=False)
QUESTION = Accuracy(Branch.NOISED, "pgd-7", attack_named("pgd-7"), adaptive=True)
ASK = Evaluate("pen-0", PERSONAL, "test", (QUESTION,), 5)
NODE = NodeConfig.read({"partition-id": 0, "num-partitions": 4})

Flat = dict[str, bytes | str]
"""A message as it can be changed: the bytes of tensors, the text of JSON."""


def flat(records: RecordDict) -> Flat:
    """A message of ours."""
    return {
        name: record["tensors"].data if isinstance(record, ArrayRecord) else str(record["json"])
        for name, record in records.items()
        if isinstance(record, ArrayRecord | ConfigRecord)
    }


def order(job: Job) -> Flat:
    shared = shared_record(SHARED, PARTS, "float32")
    return flat(order_records(ROUND, job, Role.AT, SETUP, shared, "float32", CHOSEN.attack))


def reply(result: Upload | Answers | Failure) -> Flat:
    return flat(reply_records(result, SHARED, PARTS, "float32"))


ORDERS: dict[str, Flat] = {"train": order(TRAIN), "evaluate": order(ASK)}
REPLIES: dict[str, Flat] = {
    "upload": reply(Upload("pen-0", 1, SHARED, PERSONAL, 20, {"loss": 1.5})),
    "answers": reply(Answers("pen-0", 1, {name: torch.ones(5, dtype=torch.bool) for name in QUESTION.names})),
    "failure": reply(Failure("pen-0", 1, "no data")),
}
INTRODUCTION = Introduction(
    version="0.1.0", client="pen-0", domain="pen", label="pen", classes=("0", "1"), image_shape=(3, 28, 28),
    samples=20, validation=4, test="0" * 64, fingerprint="0" * 64,
    budget=Budget(forward=1e9, backward=1e9, attack=1e9), finished=3,
)  # fmt: skip
HONEST = tuple(Member(f"plain-{number}", "plain", Role.ST.duty, 32) for number in range(3))
"""Clients that are there before a hostile one comes."""


@st.composite
def another_message(draw: st.DrawFn, message: Flat) -> RecordDict:
    """A message with one part changed, missing, of another kind, or beside something else."""
    name = draw(st.sampled_from([*message]))
    parts: dict[str, Any] = {}
    for key, content in message.items():
        changed = draw(_another(content)) if key == name else content
        parts[key] = _record(changed)
    what = draw(st.sampled_from(["as it is"] * 5 + ["missing", "kind", "serialisation", "extra"]))
    if what == "missing":
        del parts[name]
    elif what == "kind":
        parts[name] = ConfigRecord({"json": draw(st.sampled_from([1, 2.5, True, b"x", "x", [1, 2]]))})
    elif what == "serialisation":
        parts[name] = ArrayRecord({"tensors": Array("float32", (1,), "numpy.ndarray", draw(st.binary(max_size=40)))})
    elif what == "extra":
        parts["../../extra"] = ConfigRecord({"json": "x"})
    return RecordDict(parts)


def _another(content: bytes | str) -> st.SearchStrategy[bytes | str]:
    if isinstance(content, bytes):
        return another_safetensors(content)
    trees = another_tree(json.loads(content)).map(as_json)
    return st.one_of(trees, trees, mutated(content.encode())).map(lambda text: text.decode("utf-8", errors="replace"))


def _record(content: bytes | str) -> ArrayRecord | ConfigRecord:
    if isinstance(content, bytes):
        return ArrayRecord({"tensors": Array("uint8", (len(content),), wire.SAFETENSORS, content)})
    return ConfigRecord({"json": content})


def try_order(kind: type[Order]) -> Callable[[RecordDict, Path], None]:
    """As the ClientApp reads it, up to where the work begins."""

    def attempt(records: RecordDict, _: Path) -> None:
        given = wire.value_of(records, "order", kind)
        NODE.check(given.setup, attacks_in(given.questions) if isinstance(given, EvaluateOrder) else ())
        round_, _ = job_of(records, given, PARTS)
        done = affordable(round_, MEMBER.samples, NODE.max_passes)
        assert (done.steps or 0) <= NODE.max_passes * round_.local_epochs, "20 samples are one batch"
        assert done.deadline_seconds is None or 0 < done.deadline_seconds < math.inf

    return attempt


def try_reply(job: Job) -> Callable[[RecordDict, Path], None]:
    """As the server reads it."""

    def attempt(records: RecordDict, _: Path) -> None:
        found = result_of(records, ROUND, job, MEMBER, PARTS, "float32")
        assert found.client == job.client
        if isinstance(found, Upload):
            CHECK.admit(found)
            assert found.shared.keys() == SHARED.keys()
            assert all(bool(value.isfinite().all()) for value in found.shared.values())

    return attempt


def try_introduction(records: RecordDict, folder: Path) -> str | None:
    """As the server reads it: what the node says, whether it may come, what it counts for, and what it has kept."""
    said = wire.value_of(records, "response", Response).content
    if not isinstance(said, Introduction):
        return REFUSED
    if too_large(said, CHOSEN) or wrong_part(said, HONEST):
        return REFUSED
    if Agreement(version="0.1.0", classes=("0", "1"), image_shape=(3, 28, 28)).objection(said):
        return REFUSED
    afforded_duties({said.client: said}, WORKLOAD, 30.0)
    _try_identity(said, Registry(folder / "nodes.json"))
    newcomer = Member(said.client if said.client != "plain-0" else "pen-9", said.domain, Role.AT.duty, said.samples)
    members = capped_samples([*HONEST, newcomer])
    assert members[-1].samples <= 2 * max(member.samples for member in HONEST)
    plan = build_plan(CHOSEN, METHOD, NET, members, equal_sizes=False)
    assert (plan.schedule.steps() or 0) <= 2, "64 samples are two batches: what honest nodes are ordered"
    kept = {newcomer.id: wire.unpacked(records, "personal", PARTS.personal)} if said.finished is not None else {}
    state = with_newcomers(replace(initial_state(NET, plan), personal={}), plan, NET, kept)
    for layer in NAMES.batch_norms:
        mean, variance = (state.personal[newcomer.id][name] for name in layer.statistics)
        assert bool((variance >= 0).all())
        assert max(mean.norm().item(), variance.norm().item()) <= 2 * LARGEST_STATISTIC * len(mean)
    return None


def _try_identity(said: Introduction, registry: Registry) -> None:
    """Whatever a node says, the next node with another key is not the same client."""
    owner, other = Identity(key="a" * 64, name="owner"), Identity(key="b" * 64, name="other")
    assert registry.objection(said.client, owner) is None
    registry.register(said.client, owner, said.samples)
    again = Registry(registry.path)
    assert again.objection(said.client, owner) is None
    assert again.objection(said.client, other) is not None


INTRODUCED: Flat = {
    "response": json.dumps({"content": json.loads(INTRODUCTION.model_dump_json(exclude_none=True))}),
    "personal": wire.packed(PERSONAL)["tensors"].data,
}

SUBJECTS = [
    Subject("message: order to train", another_message(ORDERS["train"]), try_order(TrainOrder)),
    Subject("message: order to evaluate", another_message(ORDERS["evaluate"]), try_order(EvaluateOrder)),
    Subject("message: upload", another_message(REPLIES["upload"]), try_reply(TRAIN)),
    Subject("message: answers", another_message(REPLIES["answers"]), try_reply(ASK)),
    Subject("message: failure", another_message(REPLIES["failure"]), try_reply(TRAIN), weight=3),
    Subject("message: introduction", another_message(INTRODUCED), try_introduction),
    Subject(
        "message: of anything",
        st.dictionaries(
            st.sampled_from(["shared", "personal", "reply"]), st.one_of(st.text(), st.binary()).map(_record)
        ).map(RecordDict),
        try_reply(TRAIN),
        weight=3,
    ),
]
