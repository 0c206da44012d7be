"""Flower's simulation engine with its own FedAvg strategy; for FedBN, batch norm stays in the client's state."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from safetensors.torch import load_file, save_file
from workload import LR, State, Tell, Work, is_batch_norm, read, shared_names

app = ClientApp()


@lru_cache(maxsize=1)  # a worker of the simulation runs many jobs
def _work(path: str) -> tuple[Work, torch.nn.Sequential]:
    torch.set_num_threads(1)
    work = read(Path(path))
    return work, work.network()


@app.train()
def local_epoch(message: Message, context: Context) -> Message:
    """One local epoch of one domain."""
    config = message.content["config"]
    work, net = _work(str(config["work"]))
    domain, round_ = int(context.node_config["partition-id"]), int(config["server-round"]) - 1
    net.load_state_dict(work.initial)
    if "batch norm" in context.state:
        net.load_state_dict(context.state["batch norm"].to_torch_state_dict(), strict=False)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    optimizer = torch.optim.SGD(net.train().parameters(), lr=LR)
    x, y = work.images[domain], work.labels[domain]
    for index in work.batches(round_, domain):
        optimizer.zero_grad()
        F.cross_entropy(net(x[index]), y[index]).backward()
        optimizer.step()
    own = net.state_dict()
    if config["method"] == "fedbn":
        norm = {name: tensor for name, tensor in own.items() if is_batch_norm(name) and tensor.is_floating_point()}
        context.state["batch norm"] = ArrayRecord(norm)
        if round_ == work.rounds - 1:
            save_file(norm, Path(str(config["out"])) / f"{domain}.safetensors")
    arrays = ArrayRecord({name: own[name] for name in shared_names(net, str(config["method"]))})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": len(y)})})
    return Message(content, reply_to=message)


def train(work: Work, method: str, tell: Tell) -> list[State]:
    """Rounds of FedAvg over all nodes, without evaluation."""
    path = os.environ["PEERS_WORK"]
    server, found = ServerApp(), {}

    class Told(FedAvg):
        """FedAvg that reports the end of each round."""

        def aggregate_train(self, server_round: int, replies: object) -> object:
            """The mean of the replies."""
            made = super().aggregate_train(server_round, replies)
            tell()
            return made

    with tempfile.TemporaryDirectory(prefix="peers-") as folder:

        @server.main()
        def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
            net = work.network()
            initial = {name: net.state_dict()[name] for name in shared_names(net, method)}
            many = len(work.images)
            strategy = Told(fraction_evaluate=0.0, min_train_nodes=many, min_available_nodes=many)
            config = ConfigRecord({"work": path, "method": method, "out": folder})
            result = strategy.start(grid, ArrayRecord(initial), num_rounds=work.rounds, train_config=config)
            found["arrays"] = result.arrays.to_torch_state_dict()

        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
        run_simulation(server, app, num_supernodes=len(work.images), backend_config=backend)
        states = [dict(found["arrays"]) for _ in work.images]
        if method == "fedbn":
            states = [state | load_file(Path(folder) / f"{d}.safetensors") for d, state in enumerate(states)]
    return states
