"""This package, float32, with its default worker processes: FATAvg and FATBN without AT users."""

from __future__ import annotations

from itertools import islice

from workload import BATCH, LR, State, Tell, Work

from fedrbn import Branch, plain
from fedrbn import config as configs
from fedrbn.data.samples import Client, Federation, Samples
from fedrbn.federated.assemble import assemble
from fedrbn.federated.server import federate, initial_state
from fedrbn.nets.state import load
from fedrbn.types import Role

METHODS = {"fedavg": "fatavg", "fedbn": "fatbn"}
SEED = 1


def names(domains: int) -> list[str]:
    """The clients, one for each domain."""
    return [f"domain-{d}" for d in range(domains)]


def train(work: Work, method: str, tell: Tell) -> list[State]:
    """The rounds of `federate`; the order of batches is derived from seed, round and client, as in this package."""
    parts = [
        (Samples((x * 255).round().byte(), y), Samples((tx * 255).round().byte(), ty))
        for x, y, tx, ty in zip(work.images, work.labels, work.test_images, work.test_labels, strict=True)
    ]
    ids = names(len(parts))
    clients = [
        Client(name, name, Role.ST, own, own.first(0), test) for name, (own, test) in zip(ids, parts, strict=True)
    ]
    federation = Federation(tuple(clients), tuple(ids), {n: n for n in ids}, tuple("0123456789"), equal_sizes=True)
    experiment = configs.make(
        {
            "federation": {"at": 0.0},
            "model": {"width": work.width},
            "train": {"rounds": work.rounds, "batch_size": BATCH, "lr": LR, "schedule": "constant"},
            "method": {"name": METHODS[method]},
            "run": {"seed": SEED, "precision": None},
        }
    )
    assembly = assemble(experiment, data=federation)
    state = initial_state(assembly.net, assembly.plan)
    with assembly.executor() as execute:
        for reached, _ in islice(federate(state, assembly.plan, execute), work.rounds):
            state = reached
            tell()
    found = []
    for name in ids:
        load(assembly.net, state.shared)
        load(assembly.net, state.personal[name])
        network = plain(assembly.net, Branch.CLEAN)
        found.append({key: tensor.clone() for key, tensor in network.state_dict().items()})
    return found
