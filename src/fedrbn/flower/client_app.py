"""The ClientApp: a site introduces itself, trains and is evaluated, with the same code as an embedded run.

Every message starts a new process, so everything that a client needs is in the message, in its node config, or on its
own disk. A server's request is checked first; see `settings.NodeConfig.check`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrbn.config import Experiment
from fedrbn.data.digests import digest_of
from fedrbn.data.samples import Client
from fedrbn.errors import MessageError
from fedrbn.federated.client import steps_per_epoch
from fedrbn.federated.executors.host import ClientHost, perform
from fedrbn.federated.privacy.mechanism import from_config as privacy_of
from fedrbn.federated.protocol import MOST_CAUSE, Failure, Round, Train, Upload
from fedrbn.fleet.probe import free_memory, measure_speed
from fedrbn.flower import wire
from fedrbn.flower.deadline import within
from fedrbn.flower.handshake import Budget, Introduction, Refusal, Response
from fedrbn.flower.instructions import EvaluateOrder, Order, Setup, TrainOrder
from fedrbn.flower.messages import Parts, failure_records, job_of, reply_records
from fedrbn.flower.questions import attacks_in
from fedrbn.flower.settings import NodeConfig
from fedrbn.flower.site import SiteMemory, fingerprint, local_federation, names_of, network
from fedrbn.hardware import one_thread
from fedrbn.nets.dual_bn import DualNet
from fedrbn.types import Tensors

app = ClientApp()
_ERRORS = (ValueError, TypeError, KeyError, RuntimeError, OSError)


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Answer with the site's name and data description, or with the reason why it does not take part."""
    try:
        records = _introduction(wire.value_of(message.content, "setup", Setup), context)
    except _ERRORS as error:
        reason = f"{type(error).__name__}: {error}"[:MOST_CAUSE]
        records = RecordDict({"response": wire.text(Response(content=Refusal(reason=reason)))})
    return Message(records, reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One local update on the site's own data."""
    return _done(message, context, TrainOrder)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Which of the site's held-out samples its network classifies correctly."""
    return _done(message, context, EvaluateOrder)


def _introduction(setup: Setup, context: Context) -> RecordDict:
    node = NodeConfig.read(context.node_config)
    node.check(setup)
    federation = local_federation(node, context.node_config, setup)
    (client,) = federation.clients
    net = network(node, setup, federation)
    remembered = SiteMemory.of(node, setup, client.id).recall(context.state)
    introduction = Introduction(
        version=version("fedrbn"),
        client=client.id,
        partition=node.partition_id if node.data is None else None,
        domain=client.domain,
        label=federation.labels[client.domain],
        classes=federation.classes,
        image_shape=federation.image_shape,
        samples=len(client.train),
        validation=len(client.validation),
        test=digest_of(client.test),
        fingerprint=fingerprint(net, names_of(net, setup)),
        budget=_budget(node, net, federation.image_shape),
        finished=None if remembered is None else remembered[0],
    )
    records = RecordDict({"response": wire.text(Response(content=introduction))})
    if remembered is not None:
        records["personal"] = remembered[1]
    return records


def _budget(node: NodeConfig, net: DualNet, image_shape: tuple[int, int, int]) -> Budget:
    """The budget that the site states, or measures if so configured."""
    speeds = dict.fromkeys(("forward", "backward", "attack"), node.macs_per_second)
    memory = node.memory
    if node.probe is not None:
        with one_thread():
            speed = measure_speed(net, image_shape, 32, node.probe)
        speeds = {"forward": speed.forward, "backward": speed.backward, "attack": speed.attack}
        memory = memory or free_memory()
    return Budget(role=node.role, memory=memory, bandwidth=node.bandwidth, **speeds)


def _done(message: Message, context: Context, kind: type[TrainOrder | EvaluateOrder]) -> Message:
    """Carry out an order; any error is answered with a Failure, which says more than an error code."""
    order = wire.value_of(message.content, "order", kind)
    try:
        with within(order.round.deadline_seconds):
            records = _performed(order, message.content, context)
    except _ERRORS as error:
        records = failure_records(Failure(order.job.client, order.round.number, f"{type(error).__name__}: {error}"))
    return Message(records, reply_to=message)


def _performed(order: Order, content: RecordDict, context: Context) -> RecordDict:
    node, setup = NodeConfig.read(context.node_config), order.setup
    node.check(setup, attacks_in(order.questions) if isinstance(order, EvaluateOrder) else ())
    federation = local_federation(node, context.node_config, setup)
    client = _as_ordered(federation.clients[0], order)
    net = network(node, setup, federation)
    parts = Parts.of(net, names_of(net, setup))
    round_, job = job_of(content, order, parts)
    if node.data is not None:
        round_ = affordable(round_, len(client.train), node.max_passes)
    memory = SiteMemory.of(node, setup, client.id)
    privacy = privacy_of(Experiment(privacy=setup.privacy))
    with one_thread():
        result = perform(ClientHost({client.id: client}, net, memory.store, privacy), round_, job)
    if isinstance(job, Train) and isinstance(result, Upload):
        memory.keep(context.state, round_.number + 1, _own(job.personal, result))
    return reply_records(result, round_.shared, parts, order.transport)


def affordable(round_: Round, samples: int, passes: int) -> Round:
    """The round, limited to this many passes over this many samples for each local epoch.

    The server orders the mean number of steps over sites, which depends on the samples that all of them claim.
    """
    if round_.steps is None:
        return round_
    most = passes * round_.local_epochs * steps_per_epoch(samples, round_.batch_size)
    return replace(round_, steps=min(round_.steps, most))


def _as_ordered(client: Client, order: Order) -> Client:
    if client.id != order.job.client:
        raise MessageError(
            f"got a job for client {order.job.client!r}; expected {client.id!r}, the client of this site. Restart "
            "the server's run after nodes have switched clients."
        )
    return Client(client.id, client.domain, order.role, client.train, client.validation, client.test, client.augment)


def _own(sent: Tensors, upload: Upload) -> Tensors:
    """The client's batch norm after its update: what it trained, and the BN_a it was sent if it did not train that."""
    return sent | upload.personal
