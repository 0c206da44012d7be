"""What travels comes back the same; what should not travel does not; what hostile peers send is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from pydantic import Field

from fedrbn.attacks import Untargeted, attack_named, from_config
from fedrbn.config import AttackConfig
from fedrbn.config.section import Section
from fedrbn.errors import MessageError, UploadError
from fedrbn.evaluation.accuracy import CONFIDENT, Accuracy
from fedrbn.evaluation.diagnosis import Diagnosis
from fedrbn.federated.aggregation.layout import Local, layout
from fedrbn.federated.assemble import build_network
from fedrbn.federated.methods import METHODS
from fedrbn.federated.objectives import OneStep
from fedrbn.federated.options import configure, resolved
from fedrbn.federated.protocol import Answers, Evaluate, Failure, Job, Question, Result, Round, Train, Upload
from fedrbn.federated.uploads.validation import UploadCheck, length, scratch
from fedrbn.flower import wire
from fedrbn.flower.instructions import EvaluateOrder, Setup, TrainOrder, Transport, method_of, setup_for
from fedrbn.flower.messages import Parts, job_of, order_records, reply_records, result_of, shared_record
from fedrbn.flower.questions import as_data, attack_from, from_data
from fedrbn.nets.state import tensors
from fedrbn.types import Branch, Member, Role, Tensors

from .in_process import InProcessGrid, travelled
from .small import experiment

TOKEN = "0123456789abcdef" * 2
CHOSEN = experiment()
METHOD = configure(CHOSEN.method, from_config(CHOSEN.attack))
NET = build_network(CHOSEN, METHOD, 10, (3, 28, 28))
NAMES = layout(NET, METHOD.local)
PARTS = Parts.of(NET, NAMES)
VALUES = {name: tensor.clone() for name, tensor in tensors(NET).items()}
SHARED = {name: VALUES[name] for name in NAMES.shared}
PERSONAL = {name: VALUES[name] for name in NAMES.personal}
ROUND = Round(4, 1, METHOD, SHARED, lr=0.05, batch_size=32, local_epochs=1, steps=3, freeze=1, deadline_seconds=90)
MEMBER = {role: Member("pen-0", "pen", role.duty, 20) for role in Role}


def sent(records: RecordDict) -> RecordDict:
    """The records as they arrive at the other side, through Flower's own bytes."""
    InProcessGrid(None, {})  # type: ignore[arg-type]  # sets who messages are from
    return travelled(Message(records, dst_node_id=1, message_type="train")).content


def orders(job: Job, role: Role, transport: Transport = "float32") -> RecordDict:
    setup = setup_for(role, CHOSEN, TOKEN)
    shared = shared_record(SHARED, PARTS, transport)
    own = replace(job, duty=role.duty) if isinstance(job, Train) else job
    return sent(order_records(ROUND, own, role, setup, shared, transport, CHOSEN.attack))


def upload(role: Role, **changes: Any) -> Upload:
    kept = NAMES.noised if role is Role.ST else frozenset[str]()
    whole = Upload(
        "pen-0",
        4,
        {name: value + 0.5 for name, value in SHARED.items() if name not in kept},
        {name: value for name, value in PERSONAL.items() if name not in kept},
        20,
        {"loss": 1.5, "seconds": 0.1},
    )
    return replace(whole, **changes)


def read(result: Result, job: Job, role: Role = Role.AT, transport: Transport = "float32") -> Result:
    return result_of(sent(reply_records(result, SHARED, PARTS, transport)), ROUND, job, MEMBER[role], PARTS, transport)


TRAIN = Train("pen-0", Role.AT.duty, PERSONAL, calibrate=False)
QUESTION = Accuracy(Branch.NOISED, "pgd-7", attack_named("pgd-7"), adaptive=True)
ASK = Evaluate("pen-0", PERSONAL, "test", (QUESTION,), 5)
NAMED = QUESTION.names


@pytest.mark.parametrize("role", Role)
def test_a_training_job_arrives_as_it_was(role: Role) -> None:
    job = replace(TRAIN, duty=role.duty, calibrate=role is Role.ST)
    records = orders(job, role)
    round_, arrived = job_of(records, wire.value_of(records, "order", TrainOrder), PARTS)
    assert isinstance(arrived, Train)
    assert (arrived.client, arrived.role, arrived.calibrate) == (job.client, role, job.calibrate)
    assert replace(round_, shared={}, method=METHOD) == replace(ROUND, shared={})
    for got, given in ((round_.shared, SHARED), (arrived.personal, PERSONAL)):
        assert got.keys() == given.keys()
        assert all(torch.equal(got[name], given[name]) and got[name].dtype == given[name].dtype for name in given)
    assert round_.method.objective(role.duty, job.calibrate) == METHOD.objective(role.duty, job.calibrate)
    assert round_.method.training_of(role) == METHOD.training_of(role)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "fedrbn+"])
def test_an_st_client_is_told_nothing_of_the_adversary_and_does_the_same(name: str) -> None:
    chosen = experiment(method={"name": name}, attack={"eps": 0.123, "steps": 11, "step_size": 0.0456})
    method = configure(chosen.method, from_config(chosen.attack))
    setup = setup_for(Role.ST, resolved(chosen), TOKEN)
    text = setup.model_dump_json()
    assert setup.attack is None
    assert not [secret for secret in ("0.123", "0.0456", ":11", 'at_loss":"') if secret in text]
    known = method_of(setup)
    for calibrate in (False, True):
        assert known.objective(Role.ST.duty, calibrate) == method.objective(Role.ST.duty, calibrate)
    assert known.training_of(Role.ST) == method.training_of(Role.ST)
    assert (known.local, known.dual_bn, known.affine) == (method.local, method.dual_bn, method.affine)
    assert (known.class_prior, known.adaptation) == (method.class_prior, method.adaptation)


@pytest.mark.parametrize("name", ["fedrbn+", "fedrbn.federated.methods:fedrbn_plus"])
def test_an_st_client_that_attacks_its_own_images_is_told_how_far_it_may_go(name: str) -> None:
    """A built-in method, and the same as if it were somebody's own."""
    chosen = experiment(method={"name": name, "lam": 0.6}, attack={"eps": 0.123, "steps": 11})
    known = method_of(setup_for(Role.ST, resolved(chosen), TOKEN))
    assert known.objective(Role.ST.duty, calibrate=True) == OneStep(0.6, 0.123)


def test_the_withheld_adversary_refuses_to_act() -> None:
    method = method_of(setup_for(Role.ST, CHOSEN, TOKEN))
    with pytest.raises(MessageError, match="without an attack"):
        method.at(NET, torch.rand(2, 3, 28, 28), torch.tensor([0, 1]), torch.Generator())


def test_all_messages_of_a_round_hold_the_same_record_of_the_weights() -> None:
    """Flower's store keeps an object once by the hash of its content; here it is even the same object."""
    shared = shared_record(SHARED, PARTS, "float32")
    setup = setup_for(Role.AT, CHOSEN, TOKEN)
    first, second = (
        order_records(ROUND, replace(TRAIN, client=client), Role.AT, setup, shared, "float32", CHOSEN.attack)
        for client in ("pen-0", "pen-1")
    )
    assert first["shared"] is second["shared"]
    assert len(shared) == 1, "one array, and so one object to move, not one for each tensor"


QUESTIONS: list[Question] = [
    Accuracy(Branch.CLEAN),
    Accuracy(CONFIDENT, "a", attack_named("pgd:steps=3,restarts=2"), adaptive=True, limit=4),
    Accuracy(Branch.NOISED, "mia", attack_named("mia-20")),
    Accuracy(Branch.NOISED, "aa", attack_named("aa"), limit=10),
    Accuracy(Branch.NOISED, "lsa", attack_named("lsa-7")),
    Accuracy(Branch.NOISED, "blur", attack_named("gaussian-blur:severity=2")),
    Accuracy(Branch.NOISED, "pgd", attack_named("pgd-7"), radius=8 / 255),
    Diagnosis(Branch.NOISED, samples=7),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_questions_travel_as_data(question: Question) -> None:
    job = replace(ASK, questions=(question,))
    records = orders(job, Role.ST)
    order = wire.value_of(records, "order", EvaluateOrder)
    _, arrived = job_of(records, order, PARTS)
    assert isinstance(arrived, Evaluate)
    assert arrived.questions == (question,)
    assert str(arrived.questions[0]) == str(question), "its random numbers come from its text"
    assert (arrived.part, arrived.limit) == ("test", 5)


def test_an_st_client_that_is_validated_learns_nothing_of_the_attack() -> None:
    records = orders(replace(ASK, part="validation", questions=(Accuracy(Branch.NOISED, "pgd-7"),)), Role.ST)
    text = str(records["order"]["json"])  # type: ignore[index]
    assert "noised" in text
    assert "pgd" not in text.lower()
    assert "attack" not in text


def own_attack(loss: Any, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Somebody's own attack."""
    return x


def test_ones_own_attack_travels_by_its_name() -> None:
    config = AttackConfig(name="flower.test_messages:own_attack")
    chosen = from_config(config)
    data = as_data(Accuracy(Branch.CLEAN, "own", Untargeted(chosen)), config)
    assert data.attack is not None
    assert attack_from(data.attack) == Untargeted(chosen)


def test_a_question_of_ones_own_does_not_travel() -> None:
    with pytest.raises(MessageError, match="expected Accuracy or Diagnosis"):
        as_data(lambda net, samples, generator: {}, CHOSEN.attack)


@pytest.mark.parametrize("role", Role)
def test_an_upload_arrives_as_it_was(role: Role) -> None:
    given = upload(role)
    got = read(given, TRAIN, role)
    assert isinstance(got, Upload)
    assert replace(got, shared={}, personal={}) == replace(given, shared={}, personal={})
    for part in ("shared", "personal"):
        values = getattr(got, part)
        assert values.keys() == getattr(given, part).keys()
        assert all(torch.equal(value, getattr(given, part)[name]) for name, value in values.items())


def test_answers_and_failures_arrive_as_they_were() -> None:
    given = Answers("pen-0", 4, {name: torch.tensor([True, False]) for name in NAMED})
    got = read(given, ASK)
    assert isinstance(got, Answers)
    assert got.correct.keys() == given.correct.keys()
    assert all(torch.equal(value, given.correct[name]) for name, value in got.correct.items())
    assert read(Failure("pen-0", 4, "no memory"), ASK) == Failure("pen-0", 4, "no memory")


def test_bfloat16_rounds_what_was_changed_and_not_the_weights() -> None:
    """θ = 1 + 2⁻¹⁰ needs 11 bits and bfloat16 has 8: the client is sent 1. It makes 1.25 of it, a change of 0.25, which
    bfloat16 holds exactly; so the server must find 1.25 + 2⁻¹⁰, without having lost the small part of its own θ."""
    name = next(iter(SHARED))
    exact = {key: torch.full_like(value, 1 + 2**-10) for key, value in SHARED.items()}
    setup = setup_for(Role.AT, CHOSEN, TOKEN)
    records = sent(
        order_records(ROUND, TRAIN, Role.AT, setup, shared_record(exact, PARTS, "bfloat16"), "bfloat16", CHOSEN.attack)
    )
    round_, _ = job_of(records, wire.value_of(records, "order", TrainOrder), PARTS)
    assert round_.shared[name].dtype == torch.float32
    assert torch.equal(round_.shared[name], torch.ones_like(exact[name]))
    trained = upload(Role.AT, shared={key: torch.full_like(value, 1.25) for key, value in SHARED.items()})
    reply = sent(reply_records(trained, round_.shared, PARTS, "bfloat16"))
    got = result_of(reply, replace(ROUND, shared=exact), TRAIN, MEMBER[Role.AT], PARTS, "bfloat16")
    assert isinstance(got, Upload)
    assert torch.equal(got.shared[name], torch.full_like(exact[name], 1.25 + 2**-10))
    assert all(torch.equal(value, trained.personal[key]) for key, value in got.personal.items()), "never rounded"


def test_bfloat16_leaves_shared_statistics_alone() -> None:
    """Rounded, 0.503 is 0.50390625 on its way down, and the change to 0.0005 would make the server's copy negative."""
    parts = Parts.of(NET, layout(NET, Local.NOTHING))
    values, own = (
        {name: torch.zeros(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
        for specs in (parts.shared, parts.personal)
    )
    variance = next(name for name in parts.statistics if "running_var" in name)
    before, after = ({**values, variance: torch.full_like(values[variance], v)} for v in (0.503, 0.0005))
    setup = setup_for(Role.AT, CHOSEN, TOKEN)
    record = shared_record(before, parts, "bfloat16")
    records = sent(
        order_records(ROUND, replace(TRAIN, personal=own), Role.AT, setup, record, "bfloat16", CHOSEN.attack)
    )
    round_, job = job_of(records, wire.value_of(records, "order", TrainOrder), parts)
    assert torch.equal(round_.shared[variance], before[variance])
    reply = sent(reply_records(upload(Role.AT, shared=after, personal=own), round_.shared, parts, "bfloat16"))
    got = result_of(reply, replace(ROUND, shared=before), job, MEMBER[Role.AT], parts, "bfloat16")
    assert isinstance(got, Upload)
    torch.testing.assert_close(got.shared[variance], after[variance])


def _array(content: bytes, stype: str = wire.SAFETENSORS) -> ArrayRecord:
    return ArrayRecord({"tensors": Array("uint8", (len(content),), stype, content)})


FIRST = next(name for name, value in SHARED.items() if value.ndim == 4)


def _shared(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[RecordDict], None]:
    def apply(records: RecordDict) -> None:
        values = {name: value.clone() for name, value in SHARED.items()}
        change(values)
        records["shared"] = wire.packed(values)

    return apply


def _reply(**changes: Any) -> Callable[[RecordDict], None]:
    def apply(records: RecordDict) -> None:
        content = json.loads(records["reply"]["json"])  # type: ignore[index, arg-type]
        content["upload"] |= changes
        records["reply"] = ConfigRecord({"json": json.dumps(content)})

    return apply


def _replaced(name: str, record: Any) -> Callable[[RecordDict], None]:
    return lambda records: records.__setitem__(name, record)


HOSTILE: dict[str, tuple[Callable[[RecordDict], Any], str]] = {
    "no tensors": (lambda records: records.pop("shared"), "without tensors 'shared'"),
    "a record of another kind": (_replaced("shared", ConfigRecord({"a": 1})), "without tensors 'shared'"),
    "numpy's format": (_replaced("shared", _array(b"x", "numpy.ndarray")), "without tensors 'shared'"),
    "a pickle": (_replaced("shared", _array(pickle.dumps(print))), "cannot be read"),
    "a cut file": (_replaced("shared", _array(wire.packed(SHARED)["tensors"].data[:1000])), "cannot be read"),
    "a header that claims too much": (_replaced("shared", _array(b"\xff" * 8 + b"{}")), "cannot be read"),
    "too many bytes": (_replaced("shared", _array(b"\0" * 10_000_000)), "expected at most"),
    "a tensor less": (_shared(lambda values: values.pop(FIRST)), "lack 'network"),
    "a tensor more": (_shared(lambda values: values.update(extra=torch.ones(1))), "include 'extra'"),
    "another shape": (_shared(lambda values: values.update({FIRST: torch.ones(1)})), "expected torch.float32"),
    "another type": (_shared(lambda values: values.update({FIRST: values[FIRST].half()})), "torch.float16"),
    "no reply": (lambda records: records.pop("reply"), "without a readable 'reply'"),
    "reply that is not JSON": (_replaced("reply", ConfigRecord({"json": "{"})), "reply"),
    "reply that is huge": (_replaced("reply", ConfigRecord({"json": " " * 1_000_001})), "at most 1000000 characters"),
    "another client": (_reply(client="pen-1"), "got an answer of client 'pen-1'"),
    "a path as client": (_reply(client="../../etc"), "client"),
    "another round": (_reply(round=3), "expected 'pen-0' in round 5"),
    "no samples": (_reply(samples=0), "samples"),
    "a key of its own": (_reply(weight=9), "weight"),
    "many metrics": (_reply(metrics={str(i): 1.0 for i in range(51)}), "metrics"),
    "a metric that is no number": (_reply(metrics={"loss": float("nan")}), "metrics"),
    "a metric that is text": (_reply(metrics={"loss": "<script>"}), "metrics"),
    "answers where an upload was asked for": (
        _replaced("reply", wire.text(Setup.model_construct())),
        "expected a Reply",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_uploads_are_refused(case: str) -> None:
    tamper, reason = HOSTILE[case]
    records = reply_records(upload(Role.AT, shared=SHARED), SHARED, PARTS, "float32")
    assert result_of(records, ROUND, TRAIN, MEMBER[Role.AT], PARTS, "float32"), "sound before"
    tamper(records)
    with pytest.raises(MessageError, match=reason):
        result_of(records, ROUND, TRAIN, MEMBER[Role.AT], PARTS, "float32")


CHECK = UploadCheck(
    MEMBER[Role.AT],
    VALUES,
    {name: length(value) for name, value in VALUES.items() if value.is_floating_point()},
    NAMES,
    max_update=10.0,
    scratch=scratch(),
)


@pytest.mark.parametrize("transport", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"shared": SHARED | {FIRST: torch.full_like(SHARED[FIRST], torch.nan)}}, "NaN or infinite"),
        ({"shared": SHARED | {FIRST: torch.full_like(SHARED[FIRST], torch.inf)}}, "NaN or infinite"),
        ({"samples": 2_000}, "got 2000 samples; expected the 20"),
    ],
)
def test_wrong_numbers_are_refused_where_embedded_uploads_are(
    wrong: dict[str, Any], reason: str, transport: Transport
) -> None:
    """The message is in good form and becomes an upload; the server checks that like any other."""
    got = read(upload(Role.AT, **wrong), TRAIN, transport=transport)
    assert isinstance(got, Upload)
    with pytest.raises(UploadError, match=reason):
        CHECK.admit(got)


@pytest.mark.parametrize("part", ["shared", "personal"])
def test_a_client_refuses_weights_that_are_no_numbers(part: str) -> None:
    records = orders(TRAIN, Role.AT)
    values = {"shared": SHARED, "personal": PERSONAL}[part]
    name = next(name for name, value in values.items() if value.is_floating_point())
    records[part] = wire.packed(values | {name: torch.full_like(values[name], torch.nan)})
    with pytest.raises(MessageError, match="not finite"):
        job_of(records, wire.value_of(records, "order", TrainOrder), PARTS)


@pytest.mark.parametrize(
    "text",
    ["{}", '{"failure": {"client": "pen-0", "round": 4, "cause": ""}, "answers": {"client": "pen-0", "round": 4}}'],
)
def test_a_reply_is_one_answer(text: str) -> None:
    records = RecordDict({"reply": ConfigRecord({"json": text})})
    with pytest.raises(MessageError, match="expected one of upload, answers, failure"):
        result_of(records, ROUND, ASK, MEMBER[Role.AT], PARTS, "float32")


@dataclass(frozen=True)
class Parcel:
    """Like a class of the protocol: tensors, and numbers with their bounds."""

    shared: Tensors
    warmth: Annotated[int, Field(ge=1, le=9)]
    limit: Annotated[int, Field(ge=1)] | None = None


class ParcelOrder(Section):
    """Names no field but the one that travels elsewhere."""

    parcel: Annotated[Parcel, wire.Without("shared")]


def test_a_field_travels_with_its_bound_where_only_the_dataclass_names_it() -> None:
    records = RecordDict({"order": wire.text(ParcelOrder(parcel=Parcel(SHARED, 7)))})
    text = str(records["order"]["json"])  # type: ignore[index]
    assert text == '{"parcel":{"warmth":7}}'
    arrived = wire.value_of(records, "order", ParcelOrder).parcel
    assert replace(arrived, shared=SHARED) == Parcel(SHARED, 7)
    for wrong, reason in (
        ({"warmth": 10}, "parcel.warmth"),
        ({"limit": 3}, "parcel.warmth"),
        ({"warmth": 7, "limit": 0}, "parcel.limit"),
        ({"warmth": 7, "shared": {}}, "parcel.shared"),
    ):
        records["order"] = ConfigRecord({"json": json.dumps({"parcel": wrong})})
        with pytest.raises(MessageError, match=reason):
            wire.value_of(records, "order", ParcelOrder)


def test_an_st_client_cannot_slip_in_a_noised_branch() -> None:
    """BN_a is for AT users to give: an ST client that sends one, to poison its neighbours, is refused."""
    with pytest.raises(MessageError, match="include"):
        read(upload(Role.AT), TRAIN, Role.ST)


@pytest.mark.parametrize(
    ("correct", "reason"),
    [
        ({"clean@noised": torch.tensor([True])}, "expected answers to the questions"),
        ({**dict.fromkeys(NAMED, torch.tensor([True])), "extra": torch.tensor([True])}, "expected"),
        (dict.fromkeys(NAMED, torch.tensor([1.0])), "expected booleans"),
        (dict.fromkeys(NAMED, torch.ones(2, 2, dtype=torch.bool)), "expected booleans"),
        (dict.fromkeys(NAMED, torch.ones(0, dtype=torch.bool)), "expected booleans"),
        ({"clean@noised": torch.ones(20_000_000, dtype=torch.bool)}, "at most"),
    ],
)
def test_hostile_answers_are_refused(correct: dict[str, torch.Tensor], reason: str) -> None:
    given = Answers("pen-0", 4, {name: value.clone() for name, value in correct.items()})
    with pytest.raises(MessageError, match=reason):
        read(given, ASK)


def _order(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda order: order.update(changes)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda order: order["job"].update(client="../other"), "client"),
        (_order(code="import os"), "code"),
        (lambda order: order["job"].update(role="ROOT"), "role"),
        (lambda order: order["job"].update(duty={"at_share": 2}), "at_share"),
        (lambda order: order["job"].update(duty={"at_share": 1, "lam": 1}), "one of them"),
        (lambda order: order["setup"].update(format="fedrbn-flower/1"), "format"),
        (lambda order: order["setup"].update({"token": "../../tmp"}), "token"),
        (lambda order: order["round"].update(lr=-1), "lr"),
        (lambda order: order["round"].update(lr=float("nan")), "lr"),
        (lambda order: order["round"].update(batch_size=0), "batch_size"),
        (lambda order: order["round"].update(seed=2**63), "seed"),
        (lambda order: order["round"].update(number=2**31), "number"),
        (lambda order: order["round"].update(deadline_seconds=0), "deadline_seconds"),
        (lambda order: order["round"].update(code="import os"), "code"),
        (lambda order: order["round"].update(shared={}), "shared"),
        (lambda order: order["round"].pop("lr"), "lr"),
        (lambda order: order["setup"]["method"].update(name=7), "method"),
    ],
)
def test_hostile_orders_are_refused(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    records = orders(TRAIN, Role.AT)
    order = json.loads(records["order"]["json"])  # type: ignore[index, arg-type]
    change(order)
    records["order"] = ConfigRecord({"json": json.dumps(order)})
    with pytest.raises(MessageError, match=reason):
        wire.value_of(records, "order", TrainOrder)


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"ask": "exec", "deployment": "clean"}, "ask"),
        ({"ask": "accuracy", "deployment": "os:system"}, "expected one of"),
        (
            {"ask": "accuracy", "deployment": "clean", "attack": {"kind": "PGD", "settings": {"shell": 1}}},
            "unknown 'shell'",
        ),
        (
            {"ask": "accuracy", "deployment": "clean", "attack": {"kind": "PGD", "settings": {"steps": "x"}}},
            "settings of PGD that are not valid",
        ),
        (
            {"ask": "accuracy", "deployment": "clean", "attack": {"kind": "PGD", "settings": {"steps": 0}}},
            "settings of PGD that are not valid",
        ),
        ({"ask": "accuracy", "deployment": "clean", "attack": {"kind": "os:system"}}, "an attack of kind"),
        ({"ask": "accuracy", "deployment": "clean", "attack": {}}, "without kind and config"),
        ({"ask": "diagnosis", "deployment": "elsewhere", "samples": 1}, "elsewhere"),
    ],
)
def test_hostile_questions_are_refused(question: dict[str, Any], reason: str) -> None:
    records = orders(ASK, Role.ST)
    order = json.loads(records["order"]["json"])  # type: ignore[index, arg-type]
    order["questions"] = [question]
    records["order"] = ConfigRecord({"json": json.dumps(order)})
    with pytest.raises(MessageError, match=reason):
        job_of(records, wire.value_of(records, "order", EvaluateOrder), PARTS)


def test_known_data_come_back_from_data() -> None:
    for question in QUESTIONS:
        assert from_data(as_data(question, CHOSEN.attack)) == question
