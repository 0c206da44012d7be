"""Seconds of whole rounds: the plain loop of reference.py compared with the package's federation in two workers.

The paper's Digits network, batch 32 and λ = 0.5; ten users with 111 images each (random pixels), two of them AT. Three
variants take turns: the plain loop with PyTorch's default threads, the plain loop in two single-threaded workers, and
ours in two workers through `federate` and the `processes` executor. It also measures the overhead of a round outside
client work, and the start-up time of a worker. Writes rounds.json.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from measuring import Row, matrix_rate, show
from reference import Reference, User, finish, norm_state, update, weights, whole_round
from steps import PRODUCTS
from torch import Tensor

from fedrbn import PGD
from fedrbn.config import TrainConfig
from fedrbn.data.samples import Client, Samples
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.client import batches, steps_per_epoch
from fedrbn.federated.executors.host import ClientHost
from fedrbn.federated.executors.processes import processes
from fedrbn.federated.executors.serial import in_this_process
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.protocol import Evaluate, ServerState
from fedrbn.federated.server import Plan, federate, initial_state, round_of
from fedrbn.federated.training.sgd import Batch, LocalTask, Sgd
from fedrbn.hardware import bfloat16_gain, cores, one_thread
from fedrbn.nets import build
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.precision import in_precision
from fedrbn.types import Member, Role, Tensors

USERS, AT, IMAGES, BATCH, LAM, LR, WORKERS = 10, 2, 111, 32, 0.5, 0.01, 2
STEPS = steps_per_epoch(IMAGES, BATCH)


def network() -> torch.nn.Sequential:
    """The paper's Digits network."""
    return build("digits", 10, 1.0, (3, 28, 28), seed=1)


def samples(number: int) -> Samples:
    """A user's random pixels."""
    random = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (IMAGES, 3, 28, 28), generator=random, dtype=torch.uint8)
    return Samples(images, torch.arange(IMAGES) % 10)


def order(user: int) -> list[Tensor]:
    """A user's batches."""
    return list(batches(IMAGES, BATCH, STEPS, torch.Generator().manual_seed(user)))


def plain_users() -> list[User]:
    """The users of the plain loop; all of them have a BN_a, as after a first round."""
    own = norm_state(network())
    return [User(i < AT, *samples(i).pixels(slice(None)), dict(own), dict(own)) for i in range(USERS)]


@contextmanager
def in_own_process(play_rounds: Callable[[Any], None]) -> Iterator[Callable[[], None]]:
    """A process that plays a round on each call; `play_rounds` gets the line to this one."""
    line, theirs = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=play_rounds, args=(theirs,), daemon=True)
    process.start()
    line.recv()

    def play() -> None:
        line.send("go")
        line.recv()

    yield play
    line.send(None)
    process.join(timeout=10)


def plain_loop() -> AbstractContextManager[Callable[[], None]]:
    """Users one after another in a separate process with PyTorch's default threads."""
    return in_own_process(_loop)


def _loop(line: Any) -> None:
    torch.set_num_threads(cores())
    reference, users = Reference(network(), network(), LR), plain_users()
    theta = weights(reference.clean)
    line.send("ready")
    while line.recv() is not None:
        theta = whole_round(reference, theta, users, order, lambda i: torch.Generator().manual_seed(i), LAM)
        line.send("done")


_OWN: list[Reference] = []
"""The networks of a worker of the plain loop."""


def _start() -> None:
    torch.set_num_threads(1)
    _OWN.append(Reference(network(), network(), LR))


def _train(task: tuple[dict[str, Tensor], User, int]) -> tuple[dict[str, Tensor], ...]:
    theta, user, number = task
    return update(_OWN[0], theta, user, order(number), torch.Generator().manual_seed(number), LAM)


@dataclass(frozen=True)
class Pool:
    """The plain loop in two workers, a round at a time."""

    play: Callable[[], None]
    matrix_rate: Callable[[torch.dtype], float]
    """Operations per second of a worker in products of large matrices of this type, with all workers busy."""


@contextmanager
def plain_workers() -> Iterator[Pool]:
    """The same loop in a pool of two workers with one thread each."""
    users, theta = plain_users(), weights(network())
    with mp.get_context("spawn").Pool(WORKERS, _start) as pool:
        pool.map(abs, range(WORKERS))  # wait until they have started: the next call is timed

        def play() -> None:
            nonlocal theta
            results = pool.map(_train, [(theta, user, i) for i, user in enumerate(users)], chunksize=1)
            theta = finish(users, results)

        def rate(dtype: torch.dtype) -> float:
            return statistics.mean(pool.starmap(matrix_rate, [(time.perf_counter, dtype)] * WORKERS, chunksize=1))

        yield Pool(play, rate)


@dataclass(frozen=True)
class Timed:
    """SGD that returns its CPU seconds in place of the mean loss, which carries them to the server."""

    def __call__(self, net: DualNet, batches: Iterator[Batch], task: LocalTask) -> tuple[Tensors, float]:
        """See `fedrbn.federated.training.sgd.Training`."""
        started = time.process_time()
        remembered, _ = Sgd()(net, batches, task)
        return remembered, time.process_time() - started


@dataclass
class Ours:
    """A federation of the package in two workers, a round at a time."""

    play: Callable[[], None]
    client_seconds: list[float]
    """CPU seconds of all clients' training, per round."""
    started: float
    """Seconds until both workers answered for the first time."""


def federation(precision: torch.dtype | None = None) -> tuple[ClientHost, Plan, ServerState]:
    """FedRBN with the fast network, before its first round."""
    method = replace(fedrbn(PGD()), training=Timed())
    net = method.network(network())
    members = tuple(Member(f"u{i}", "d", (Role.AT if i < AT else Role.ST).duty, IMAGES) for i in range(USERS))
    clients = {m.id: Client(m.id, "d", m.role, samples(i), samples(i), samples(i)) for i, m in enumerate(members)}
    plan = Plan(members, method, layout(net, method.local), TrainConfig(rounds=1000, batch_size=BATCH, lr=LR), seed=1)
    return ClientHost(clients, in_precision(fast(net), precision)), plan, initial_state(net, plan)


def our_own_process() -> AbstractContextManager[Callable[[], None]]:
    """`federate` in one process, as in `fedrbn run --workers 1`, independent of the caller's threads."""
    return in_own_process(_federate)


def _federate(line: Any) -> None:
    torch.set_num_threads(cores())  # as in a user's own process
    host, plan, state = federation()
    with one_thread(), in_this_process(host) as execute:
        rounds = federate(state, plan, execute)
        line.send("ready")
        while line.recv() is not None:
            next(rounds)
            line.send("done")


@contextmanager
def our_workers(precision: torch.dtype | None = None) -> Iterator[Ours]:
    """`federate` with the `processes` executor."""
    site, plan, state = federation(precision)
    started = time.perf_counter()
    with processes(site, WORKERS) as execute:
        hello = [Evaluate(m.id, state.personal[m.id], "test", (), limit=1) for m in plan.members[:WORKERS]]
        list(execute(round_of(state, plan), hello))
        waited = time.perf_counter() - started
        rounds = federate(state, plan, execute)
        spent: list[float] = []

        def play() -> None:
            _, report = next(rounds)
            spent.append(sum(metrics["loss"] for metrics in report.clients.values()))

        yield Ours(play, spent, waited)


def family_seconds() -> float:
    """CPU seconds so far of this process and its live children (Linux)."""
    tick = os.sysconf("SC_CLK_TCK")
    total = time.process_time()
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / tick
    return total


@dataclass(frozen=True)
class Took:
    """One round: wall-clock seconds, and CPU seconds of all cores together."""

    wall: float
    cpu: float


def timed(play: Callable[[], None]) -> Took:
    """Run one round."""
    wall, cpu = time.perf_counter(), family_seconds()
    play()
    return Took(time.perf_counter() - wall, family_seconds() - cpu)


def main(repeats: int = 3) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    with ExitStack() as places:
        pool, ours = places.enter_context(plain_workers()), places.enter_context(our_workers())
        ways = {
            "plain, default threads": places.enter_context(plain_loop()),
            "plain, two workers": pool.play,
            "ours": ours.play,
            "ours, one process": places.enter_context(our_own_process()),
        }
        if bfloat16_gain():
            ways["bfloat16"] = places.enter_context(our_workers(torch.bfloat16)).play
        # the first round of ours has no donors yet
        for name in (*ways, *(name for name in ways if not name.startswith("plain"))):
            print(f"  warming up: {name}, {timed(ways[name]).wall:.1f} s", flush=True)
        dtypes = (torch.float32, torch.bfloat16) if "bfloat16" in ways else (torch.float32,)
        taken, rates = [], []
        for _ in range(repeats):
            rates.append({dtype: pool.matrix_rate(dtype) for dtype in dtypes})
            taken.append({name: timed(play) for name, play in ways.items()})
        work = statistics.median(ours.client_seconds[-repeats:])
    wall = {name: statistics.median(each[name].wall for each in taken) for name in ways}
    cpu = {name: statistics.median(each[name].cpu for each in taken) for name in ways}
    rate = {dtype: statistics.median(each[dtype] for each in rates) for dtype in dtypes}
    operations = 2 * IMAGES * (AT * PRODUCTS["AT"] + (USERS - AT) * PRODUCTS["PNC"])
    arithmetic = operations / rate[torch.float32] / WORKERS
    default, two = "plain, default threads", "plain, two workers"
    rows = [
        Row("whole rounds, times the plain loop with default threads", wall[default] / wall["ours"], "x", 1.8),
        Row("whole rounds, times the plain loop in two workers", wall[two] / wall["ours"], "x", 1.4),
        Row("the same in CPU seconds (for a busy machine), default threads", cpu[default] / cpu["ours"], "x"),
        Row("the same in CPU seconds, two workers", cpu[two] / cpu["ours"], "x"),
        Row("share of the machine's matrix rate, by the clock", arithmetic / wall["ours"], "", 0.85),
        Row("share of the machine's matrix rate, by CPU seconds", WORKERS * arithmetic / cpu["ours"], ""),
        Row("CPU seconds outside client work, share of a round", 1 - work / cpu["ours"], "", 0.05, "less"),
        Row("start-up of two workers at once, until they answer", ours.started, "s", 3.0, "less"),
        Row(
            "CPU seconds of rounds in one process, times those in two workers",
            cpu["ours, one process"] / cpu["ours"],
            "x",
            1.1,
            "less",
        ),
        Row(
            "whole rounds in bfloat16, times the plain loop in two workers",
            wall[two] / wall["bfloat16"] if "bfloat16" in wall else None,
            "x",
            3.8,
        ),
        Row(
            "the same in CPU seconds",
            cpu[two] / cpu["bfloat16"] if "bfloat16" in cpu else None,
            "x",
        ),
        Row(
            "rounds in bfloat16, share of its matrix rate, by CPU seconds",
            operations / rate[torch.bfloat16] / cpu["bfloat16"] if "bfloat16" in cpu else None,
        ),
    ]
    show(
        f"Whole rounds ({USERS} users of {IMAGES} images, {AT} AT, λ = {LAM}, batch {BATCH}; {WORKERS} workers)",
        rows,
        Path(__file__).with_suffix(".json"),
        wall_seconds=wall,
        cpu_seconds=cpu,
        client_cpu_seconds=work,
        arithmetic_seconds=arithmetic,
        gigaflops={str(dtype).removeprefix("torch."): each / 1e9 for dtype, each in rate.items()},
    )
    for name in ways:
        print(f"  {name:<24} {wall[name]:6.2f} s wall {cpu[name]:6.2f} s CPU")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
