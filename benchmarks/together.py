"""CPU seconds to evaluate 50 users at once, compared with one network on as many images and with user after user.

The Digits network, trained adversarially for a few steps on one domain of digits-mini. Every user has that domain's
batch norm with a small random change, and its own test images. AutoAttack is represented by its first part (APGD) and
its last (Square, with fewer than the standard 5,000 queries), on as many users as fill a pass. User after user is
measured on a few of those and extrapolated, which keeps the whole at about two minutes of an idle core. Writes
together.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from measuring import Row, seconds, show

from fedrbn import PGD, Samples
from fedrbn.attacks import AutoAttack, Untargeted
from fedrbn.data import load
from fedrbn.data.samples import Client
from fedrbn.evaluation.accuracy import Accuracy
from fedrbn.federated.aggregation.layout import layout
from fedrbn.federated.client import batches, pixels
from fedrbn.federated.executors.host import ClientHost, perform
from fedrbn.federated.executors.serial import serial
from fedrbn.federated.methods import fatbn
from fedrbn.federated.objectives import Adversarial
from fedrbn.federated.protocol import Evaluate, Question, Round
from fedrbn.federated.training.sgd import LocalTask, Sgd
from fedrbn.hardware import keep_memory
from fedrbn.nets import build
from fedrbn.nets.dual_bn import DualNet
from fedrbn.nets.fast import fast
from fedrbn.nets.state import tensors
from fedrbn.types import Branch, Role, Tensors

USERS, IMAGES, STEPS = 50, 20, 30
ATTACKED, EVERY, LIMIT, QUERIES = 20, 5, 10, 100
"""AutoAttack: the number of users, of which every fifth is also measured alone, images of each, queries of Square."""
STEPWISE = PGD(steps=3, step_size=4 / 255)
METHOD = fatbn(PGD())


def trained(width: float) -> tuple[DualNet, Samples]:
    """A network after a few adversarial steps, and its test images."""
    domain = load("digits-mini").domains[0]
    net = fast(METHOD.network(build("digits", 10, width, (3, 28, 28), seed=1))).train()
    random = torch.Generator().manual_seed(1)
    order = pixels(domain.train, batches(len(domain.train), 32, STEPS, random))
    Sgd()(net, order, LocalTask(Adversarial(PGD(steps=2, step_size=5 / 255)), 0.05, random))
    return net.eval(), domain.test


def own(net: DualNet, user: int) -> Tensors:
    """A user's batch norm: the common one, changed by up to 2 %."""
    random = torch.Generator().manual_seed(user)
    return {
        name: tensor * (0.98 + 0.04 * torch.rand(tensor.shape, generator=random))
        if tensor.is_floating_point()
        else tensor.clone()
        for name, tensor in tensors(net).items()
        if name in layout(net, METHOD.local).personal
    }


def federation(width: float) -> tuple[ClientHost, Round, dict[str, Tensors]]:
    """All users, and one more, `all`, with the images of all of them."""
    net, test = trained(width)
    drawn = torch.randint(len(test), (USERS, IMAGES), generator=torch.Generator().manual_seed(1))
    parts = {f"u{user}": test.take(drawn[user]) for user in range(USERS)} | {"all": test.take(drawn.flatten())}
    clients = {name: Client(name, "d", Role.ST, part, part, part) for name, part in parts.items()}
    personal = {name: own(net, number) for number, name in enumerate(clients)}
    names = layout(net, METHOD.local).shared
    shared = {name: tensor.clone().contiguous() for name, tensor in tensors(net).items() if name in names}
    return ClientHost(clients, net), Round(1, 1, METHOD, shared, 0.01, 32, 1), personal


def measured(width: float, clean_repeats: int = 3) -> tuple[list[Row], dict[str, float]]:
    """The rows of one width, and the measured seconds."""
    host, round_, personal = federation(width)
    users = [name for name in personal if name != "all"]
    execute = serial(host)

    def jobs(question: Question, names: Sequence[str] = users) -> list[Evaluate]:
        return [Evaluate(name, personal[name], "test", (question,)) for name in names]

    def alone(question: Question, names: Sequence[str]) -> float:
        return seconds(lambda: [perform(host, round_, job) for job in jobs(question, names)])

    def joint(question: Question, names: Sequence[str] = users) -> float:
        return seconds(lambda: list(execute(round_, jobs(question, names))))

    def least(times: Sequence[float]) -> float:
        return min(times[1:])

    found: dict[str, float] = {}

    def note(name: str, spent: float) -> None:
        found[name] = spent
        print(f"  {name:<24} {spent:8.2f} s", flush=True)

    clean = Accuracy(Branch.CLEAN)
    pgd = Accuracy(Branch.CLEAN, "pgd", Untargeted(STEPWISE))
    note("clean, one network", least([alone(clean, ["all"]) for _ in range(1 + clean_repeats)]))
    note("clean, together", least([joint(clean) for _ in range(1 + clean_repeats)]))
    note("clean, one by one", alone(clean, users))
    note("PGD-3, one network", alone(pgd, ["all"]))
    note("PGD-3, together", joint(pgd))
    attacked = users[:ATTACKED]
    some = attacked[::EVERY]
    for part in ("apgd-ce", "square"):
        attack = Accuracy(Branch.CLEAN, "aa", AutoAttack(8 / 255, only=(part,), queries=QUERIES), limit=LIMIT)
        note(f"{part}, one by one", alone(attack, some) * len(attacked) / len(some))
        note(f"{part}, together", joint(attack, attacked))
    both = [sum(found[f"{part}, {how}"] for part in ("apgd-ce", "square")) for how in ("one by one", "together")]
    at = f"{USERS} users of {IMAGES} images, width {width:g}"
    rows = [
        Row(
            f"{at}: clean, times one network", found["clean, together"] / found["clean, one network"], "x", 1.25, "less"
        ),
        Row(
            f"{at}: PGD-3, times one network", found["PGD-3, together"] / found["PGD-3, one network"], "x", 1.25, "less"
        ),
        Row(f"{at}: clean, times faster than one by one", found["clean, one by one"] / found["clean, together"], "x"),
        Row(f"AutoAttack's parts, {ATTACKED} of them, {LIMIT} images: times faster", both[0] / both[1], "x", 3.0),
    ]
    return rows, found


def main(*widths: float) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    keep_memory()
    rows: list[Row] = []
    taken = {}
    for width in widths or (1.0,):
        more, taken[f"{width:g}"] = measured(width)
        rows += more
    show("Evaluation of all users together (CPU time)", rows, Path(__file__).with_suffix(".json"), cpu_seconds=taken)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
