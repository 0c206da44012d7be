"""The server's cost as the federation grows: memory, aggregation, propagation, and sending θ to the workers.

Synthetic uploads of the paper's Digits network (14.2 M parameters) go through `federate` like those of clients. Writes
growth.json and docs/figures/scaling.svg and .png.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.multiprocessing as mp
from measuring import Row, quickest, show

from fedrbn import PGD
from fedrbn.config import TrainConfig
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.aggregation.mean import Contribution, mean
from fedrbn.federated.executors.shared_memory import SharedBuffers
from fedrbn.federated.methods import fedrbn
from fedrbn.federated.propagation import Propagation, propagate
from fedrbn.federated.protocol import Execute, Job, Result, Round, Upload
from fedrbn.federated.server import Plan, federate, initial_state
from fedrbn.nets import build
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.state import tensors
from fedrbn.types import Member, Role, Tensors

MIB = 2**20
USERS = 1000
ST_CLIENTS = (100, 300, 1000, 3000, 10_000)
DONORS = 100


def network() -> DualNet:
    """The paper's Digits network as FedRBN trains it."""
    return fedrbn(PGD()).network(build("digits", 10, 1.0, (3, 28, 28), seed=1))


def size(values: Tensors) -> int:
    """Bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in values.values())


def made_up(noised: frozenset[str]) -> Execute:
    """An executor without clients: each upload is the shared weights, slightly scaled, in new memory."""

    def execute(round_: Round, jobs: Iterable[Job]) -> Iterator[Result]:
        for number, job in enumerate(jobs):
            kept = noised if job.role is Role.ST else frozenset[str]()
            shared = {name: tensor * (1 + 1e-6 * (number % 7)) for name, tensor in round_.shared.items()}
            personal = {name: tensor.clone() for name, tensor in job.personal.items() if name not in kept}
            yield Upload(job.client, round_.number, shared, personal, 111, {"loss": 1.0})

    return execute


def server_round(users: int) -> dict[str, float]:
    """One round with this many users in this process: peak memory above that before the federation, and CPU seconds."""
    torch.set_num_threads(1)
    net = network()
    method = fedrbn(PGD())
    members = tuple(Member(f"u{i}", "d", (Role.AT if i % 5 == 0 else Role.ST).duty, 111) for i in range(users))
    plan = Plan(members, method, layout(net, method.local), TrainConfig(rounds=1), seed=1)
    state = initial_state(net, plan)
    model, personal = size(state.shared), size(state.personal["u0"])
    gc.collect()
    before, started = _resident(), time.process_time()
    for _state, report in federate(state, plan, made_up(plan.names.noised)):
        if report.failures:
            raise RuntimeError(f"got {report.failures[0]}; expected every synthetic upload to pass.")
    return {
        "users": users,
        "model_mib": model / MIB,
        "personal_kib": personal / 1024,
        "before_mib": before / MIB,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": time.process_time() - started,
    }


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def apart(line: Any, users: int) -> None:
    """`server_round` in a separate process, so that each has its own peak."""
    line.send(server_round(users))


def memory(counts: Iterable[int]) -> list[dict[str, float]]:
    """Peak memory of the server for each number of users."""
    found = []
    for users in counts:
        ours, theirs = mp.get_context("spawn").Pipe()
        process = mp.get_context("spawn").Process(target=apart, args=(theirs, users))
        process.start()
        found.append(ours.recv())
        process.join()
    return found


def bandwidth() -> dict[str, float]:
    """GB/s of adding an upload to the mean, compared with a copy and a triad of the same size."""
    shared = {name: tensor.clone() for name, tensor in tensors(network()).items() if tensor.is_floating_point()}
    upload = {name: tensor + 1e-3 for name, tensor in shared.items()}
    count, repeats = sum(tensor.numel() for tensor in shared.values()), 10
    a, b, c = (torch.rand(count) for _ in range(3))
    fold = quickest(lambda: mean(shared, (Contribution("u", upload, 1.0) for _ in range(repeats)))) / repeats
    return {
        "fold": 3 * 4 * count / fold / 1e9,  # reads the mean and the upload, writes the mean
        "copy": 2 * 4 * count / quickest(lambda: c.copy_(a)) / 1e9,
        "triad": 3 * 4 * count / quickest(lambda: torch.add(a, b, alpha=0.5, out=c)) / 1e9,
    }


def propagation(receivers: int) -> float:
    """CPU seconds of Eqs. 3-4 from 100 AT users to this many ST users."""
    net = network()
    names = layout(net, fedrbn(PGD()).local)
    random = torch.Generator().manual_seed(1)
    statistics = {name: tensors(net)[name] for layer in names.batch_norms for name in layer.statistics}
    clients = [f"r{i}" for i in range(receivers)] + [f"d{i}" for i in range(DONORS)]
    personal = {
        client: {name: torch.rand(tensor.shape, generator=random) for name, tensor in statistics.items()}
        for client in clients
    }
    return quickest(
        lambda: propagate(personal, clients[:receivers], clients[receivers:], names.batch_norms, Propagation()), 2
    )


def draw(servers: list[dict[str, float]], spread: dict[int, float], folder: Path) -> None:
    """Two curves: the server's memory over users, and the time of propagation over ST clients."""
    plt.rcParams.update({"font.size": 9, "svg.hashsalt": "fedrbn", "svg.fonttype": "none"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9), layout="constrained")
    users = [server["users"] for server in servers]
    left.plot(users, [server["peak_mib"] - server["before_mib"] for server in servers], "o-", color="#2b6cb0")
    left.axhline(servers[0]["model_mib"], color="0.5", linestyle=":", label="one model")
    left.set(xlabel="users in the round", ylabel="MiB beside the start", title="Server's peak memory", ylim=(0, None))
    left.set_xscale("log")
    left.legend(frameon=False)
    right.loglog(list(spread), list(spread.values()), "o-", color="#c05621", label="measured")
    per_client = spread[max(spread)] / max(spread)
    right.loglog(list(spread), [per_client * n for n in spread], ":", color="0.5", label="linear")
    right.set(xlabel=f"ST clients ({DONORS} AT clients)", ylabel="CPU seconds", title="Propagation (Eqs. 3-4)")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "scaling.svg", metadata={"Date": None})
    figure.savefig(folder / "scaling.png", dpi=150)
    plt.close(figure)


def main(users: int = USERS, figures: str = "docs/figures") -> None:
    """Measure, draw and print."""
    torch.set_num_threads(1)
    servers = memory((users // 100, users // 10, users))
    rates = bandwidth()
    spread = {count: propagation(count) for count in ST_CLIENTS}
    shared = {name: tensor for name, tensor in tensors(network()).items() if tensor.is_floating_point()}
    buffers = SharedBuffers()
    sharing = quickest(lambda: (buffers.take_back(), buffers.put(shared)))
    few, many = servers[1], servers[-1]
    models = (many["peak_mib"] - many["before_mib"]) / many["model_mib"]
    per_user = (many["peak_mib"] - few["peak_mib"]) * 1024 / (many["users"] - few["users"])
    ends = [(count, spread[count]) for count in (ST_CLIENTS[-2], ST_CLIENTS[-1])]
    rows = [
        Row(f"peak memory of the server at {users} users, above its start", models, "models", 8, "less"),
        Row("memory that each further user adds", per_user, "KiB", 1024, "less"),
        Row("speed of aggregation, share of the memory bandwidth (triad)", rates["fold"] / rates["triad"], "", 0.5),
        Row(f"CPU time of propagation to {ST_CLIENTS[-1]:,} ST clients from {DONORS} AT clients", ends[1][1], "s"),
        Row("growth of this time with ST clients, as an exponent (1 is linear)", _exponent(*ends), "", 1.15, "less"),
        Row("CPU time of the server per upload, generating it included", 1e3 * many["seconds"] / many["users"], "ms"),
        Row("copying θ into shared memory, once per round", 1e3 * sharing, "ms"),
    ]
    here = Path(__file__)
    draw(servers, spread, here.parents[1] / figures)
    show(
        "Growth (Digits network, 14.2 M parameters)",
        rows,
        here.with_suffix(".json"),
        servers=servers,
        gigabytes_per_second=rates,
        propagation_seconds=spread,
    )


def _exponent(one: tuple[int, float], two: tuple[int, float]) -> float:
    """p of seconds ∝ clients^p."""
    return float(torch.log(torch.tensor(two[1] / one[1])) / torch.log(torch.tensor(two[0] / one[0])))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
