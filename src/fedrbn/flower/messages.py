"""Jobs and results as Flower records: `Round`, `Train`, `Evaluate` to clients, `Upload`, `Answers`, `Failure` back.

    shared     the shared weights θ: one record that all messages of a round have in common
    personal   the client's own batch norm
    order      JSON: what to do (see `instructions`)
    reply      JSON: who answers what

Both sides know the network, so every tensor is checked against it. With `bfloat16` the server sends θ rounded, and
clients send back their change of θ, rounded. The server adds that to its own exact θ, so rounding errors do not
accumulate over rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from flwr.app import ArrayRecord, RecordDict

from fedrbn.config import AttackConfig
from fedrbn.errors import MessageError
from fedrbn.federated.aggregation.layout import Layout
from fedrbn.federated.protocol import MOST_CAUSE, Answers, Evaluate, Failure, Job, Result, Round, Train, Upload
from fedrbn.flower import wire
from fedrbn.flower.instructions import EvaluateOrder, Order, Reply, Setup, TrainOrder, Transport, method_of
from fedrbn.flower.questions import as_data, from_data
from fedrbn.flower.wire import Spec, Specs
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import tensors
from fedrbn.types import Member, Role, Tensors


@dataclass(frozen=True)
class Parts:
    """The specs of the network's tensors, by what happens to them."""

    shared: Specs
    personal: Specs
    noised: frozenset[str]
    statistics: frozenset[str]
    """Tensors of batch norm: never rounded, because a rounded change could make a variance negative."""

    @classmethod
    def of(cls, net: DualNet, names: Layout) -> Parts:
        """The parts of a network."""
        found = wire.specs(tensors(net))
        return cls(
            {name: spec for name, spec in found.items() if name in names.shared},
            {name: spec for name, spec in found.items() if name in names.personal},
            names.noised,
            frozenset(name for layer in names.batch_norms for name in layer.statistics),
        )

    def uploaded(self, role: Role) -> tuple[Specs, Specs]:
        """(shared, personal) of a client's upload: ST users do not send BN_a."""
        kept = self.noised if role is Role.ST else frozenset[str]()
        shared, personal = (
            {name: spec for name, spec in part.items() if name not in kept} for part in (self.shared, self.personal)
        )
        return shared, personal


def shared_record(shared: Tensors, parts: Parts, transport: Transport) -> ArrayRecord:
    """θ as the record that all messages of a round share."""
    return wire.packed(_rounded(shared, parts, transport))


def order_records(
    round_: Round, job: Job, role: Role, setup: Setup, shared: ArrayRecord, transport: Transport, attack: AttackConfig
) -> RecordDict:
    """A job as a message to a client of this role; `attack` is the experiment's attack, which questions may use."""
    order: Order
    if isinstance(job, Train):
        order = TrainOrder(setup=setup, round=round_, job=job, transport=transport)
    else:
        questions = tuple(as_data(question, attack) for question in job.questions)
        order = EvaluateOrder(setup=setup, round=round_, job=job, role=role, questions=questions, transport=transport)
    return RecordDict({"shared": shared, "personal": wire.packed(job.personal), "order": wire.text(order)})


def job_of(records: RecordDict, order: Order, parts: Parts) -> tuple[Round, Job]:
    """The round and the job of an order, with its tensors checked."""
    shared = _exact(_finite(records, "shared", _lowered(parts.shared, parts, order.transport)), parts.shared)
    personal = _finite(records, "personal", parts.personal)
    round_ = replace(order.round, method=method_of(order.setup), shared=shared)
    if isinstance(order, TrainOrder):
        return round_, replace(order.job, personal=personal)
    questions = tuple(from_data(question) for question in order.questions)
    return round_, replace(order.job, personal=personal, questions=questions)


def _finite(records: RecordDict, name: str, expected: Specs) -> Tensors:
    """The tensors of an order. `fedrbn.federated.uploads.validation` checks those of a reply."""
    found = wire.unpacked(records, name, expected)
    for key, tensor in found.items():
        if not bool(torch.isfinite(tensor).all()):
            raise MessageError(
                f"got {key!r} in {name!r} with values that are not finite; expected finite ones. The server's weights "
                "have diverged: lower train.lr."
            )
    return found


def reply_records(result: Result, received: Tensors, parts: Parts, transport: Transport) -> RecordDict:
    """A result as a message; `received` is the θ that the client was sent."""
    match result:
        case Upload(shared=shared, personal=personal):
            if transport == "bfloat16":
                shared = _rounded({name: tensor - received[name] for name, tensor in shared.items()}, parts, transport)
            text = wire.text(Reply(upload=result))
            return RecordDict({"shared": wire.packed(shared), "personal": wire.packed(personal), "reply": text})
        case Answers(correct=correct):
            return RecordDict({"correct": wire.packed(correct), "reply": wire.text(Reply(answers=result))})
        case Failure():
            return failure_records(result)


def failure_records(failure: Failure) -> RecordDict:
    """A failure as a message, without tensors."""
    return RecordDict({"reply": wire.text(Reply(failure=replace(failure, cause=failure.cause[:MOST_CAUSE])))})


def result_of(
    records: RecordDict, round_: Round, job: Job, member: Member, parts: Parts, transport: Transport
) -> Result:
    """The result in a reply to this job; an answer to anything else is an error."""
    said = wire.value_of(records, "reply", Reply).result
    if (said.client, said.round) != (job.client, round_.number):
        raise MessageError(
            f"got an answer of client {said.client!r} in round {said.round + 1}; expected {job.client!r} in "
            f"round {round_.number + 1}. The node confuses its jobs."
        )
    if isinstance(said, Failure):
        return said
    if isinstance(job, Train) and isinstance(said, Upload):
        shared, personal = _uploaded(records, round_, member.role, parts, transport)
        return replace(said, shared=shared, personal=personal)
    if isinstance(job, Evaluate) and isinstance(said, Answers):
        return replace(said, correct=_answers(records, job))
    raise MessageError(
        f"got {type(said).__name__} to {type(job).__name__}; expected Upload to Train, Answers to Evaluate. The node "
        "confuses its jobs."
    )


def _uploaded(
    records: RecordDict, round_: Round, role: Role, parts: Parts, transport: Transport
) -> tuple[Tensors, Tensors]:
    """(shared, personal) of an upload."""
    shared_parts, personal_parts = parts.uploaded(role)
    shared = wire.unpacked(records, "shared", _lowered(shared_parts, parts, transport))
    if transport == "bfloat16":
        shared = {name: round_.shared[name] + change for name, change in _exact(shared, shared_parts).items()}
    return shared, wire.unpacked(records, "personal", personal_parts)


_MOST_ANSWERS = 10_000_000
"""Maximum bytes of a client's answers, one byte per sample and question."""


def _answers(records: RecordDict, job: Evaluate) -> Tensors:
    found = wire.opened(records, "correct", _MOST_ANSWERS)
    asked = {name for question in job.questions for name in question.names}
    if found.keys() != asked:
        raise MessageError(f"got answers {sorted(found)[:5]}; expected answers to the questions: {sorted(asked)[:5]}.")
    for name, answer in found.items():
        empty = job.part == "test" and not answer.numel()  # every client has test samples; none would give NaN
        if answer.dtype != torch.bool or answer.ndim != 1 or empty:
            raise MessageError(f"got {answer.dtype} {tuple(answer.shape)} as answer {name!r}; expected booleans [n].")
    return found


def _lowered(specs: Mapping[str, Spec], parts: Parts, transport: Transport) -> Specs:
    """The specs of tensors in transit."""
    return {name: replace(spec, dtype=_travelling(name, spec.dtype, parts, transport)) for name, spec in specs.items()}


def _rounded(values: Tensors, parts: Parts, transport: Transport) -> Tensors:
    return {name: tensor.to(_travelling(name, tensor.dtype, parts, transport)) for name, tensor in values.items()}


def _travelling(name: str, dtype: torch.dtype, parts: Parts, transport: Transport) -> torch.dtype:
    lowered = transport == "bfloat16" and dtype == torch.float32 and name not in parts.statistics
    return torch.bfloat16 if lowered else dtype


def _exact(values: Tensors, parts: Mapping[str, Spec]) -> Tensors:
    return {name: tensor.to(parts[name].dtype) for name, tensor in values.items()}
