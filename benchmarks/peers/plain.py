"""Plain PyTorch: users one after another, torch.optim.SGD, the mean of state dicts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from workload import LR, State, Tell, Work, shared_names


def train(work: Work, method: str, tell: Tell) -> list[State]:
    """FedAvg or FedBN in the most direct form."""
    net = work.network().train()
    shared = shared_names(net, method)
    copy = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    states = [dict(copy) for _ in work.images]
    for round_ in range(work.rounds):
        for domain, (x, y) in enumerate(zip(work.images, work.labels, strict=True)):
            net.load_state_dict(states[domain])
            optimizer = torch.optim.SGD(net.parameters(), lr=LR)
            for index in work.batches(round_, domain):
                optimizer.zero_grad()
                F.cross_entropy(net(x[index]), y[index]).backward()
                optimizer.step()
            states[domain] = {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in shared}
        states = [state | mean for state in states]
        tell()
    return states
