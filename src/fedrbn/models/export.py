"""A client's network as one file to deploy: one branch, batch norm folded, normalisation inside, and a card.

    export_client("runs/first", "pen-1", "pen.onnx")

The file is read back and compared with its network before it gets its final name, so every exported file is verified.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from fedrbn.attacks import Logits
from fedrbn.errors import ModelFileError
from fedrbn.federated.prediction import predicting_branch
from fedrbn.hardware import one_thread
from fedrbn.models.model_file import KEY, SUFFIXES, Card, read, without_gradient
from fedrbn.nets.fold import fold
from fedrbn.nets.state import tensors
from fedrbn.randomness import generator
from fedrbn.runs.directory import RunDirectory
from fedrbn.runs.load import Trained, load
from fedrbn.runs.records import evaluations
from fedrbn.types import Branch

TOLERANCE = 1e-4
"""Largest accepted difference of logits, relative to the largest logit (or to 1); float rounding is far below it."""


@dataclass(frozen=True)
class Exported:
    """A written file, and how it compares with the network it came from."""

    path: Path
    card: Card
    deviation: float
    """Largest difference of logits from the unfolded network."""
    kept: dict[str, str]
    """Batch-norm layers that were not folded, and why."""
    bytes_before: int
    """Size of the unfolded network's weights, with one set of statistics."""
    bytes_after: int
    """Size of the file."""
    milliseconds_before: float
    """Median latency of the unfolded network in PyTorch for one image, with one thread."""
    milliseconds_after: float
    """The same for the exported file in its own runtime."""


def export_client(
    run: Path | str, client: str | None, path: Path | str, branch: Branch | None = None, *, folding: bool = True
) -> Exported:
    """Write the network of one client of a trained run; without `branch`, the branch that it predicts with.

    Without a client it is a network for new clients: the shared weights with the mean batch norm of all clients.
    """
    trained = load(run)
    if client is None:
        own = branch or trained.newcomer_branch
        return export_network(
            trained.newcomer(own), describe(trained, own, client="anybody", domain="all"), path, folding=folding
        )
    chosen = branch or _branch_of(trained, client)
    net = trained.client(client, chosen)
    member = trained.plan.members[trained.clients.index(client)]
    record = measured(RunDirectory.open(Path(run)), client, chosen)
    card = describe(trained, chosen, client=client, domain=member.domain, **record)
    return export_network(net, card, path, folding=folding)


def _branch_of(trained: Trained, client: str) -> Branch:
    """The branch that a client predicts with."""
    trained.dual_client(client)  # refuses an unknown client and suggests the closest name
    member = trained.plan.members[trained.clients.index(client)]
    return predicting_branch(trained.plan, trained.state, member)


def measured(directory: RunDirectory, client: str, branch: Branch) -> dict[str, Any]:
    """SA, RA and the attack they were measured with, for this client and branch; empty if not measured.

    Of several evaluations the one with the run's own attack is used, then the one on most images, then the newest: a
    quick evaluation on a few images must not replace the run's own measurement.
    """
    found: list[tuple[bool, int, dict[str, Any]]] = []
    for record in evaluations(directory):
        user = record.users.get(client)
        if record.part != "test" or user is None:
            continue
        sa, ra = user.accuracy(f"sa@{branch.value}"), user.accuracy(f"ra@{branch.value}")
        if sa is not None and ra is not None:
            attack = {"name": record.attack, "threat": record.threat, **record.main_attack.to_json()}
            images = record.samples.get(f"sa@{branch.value}", 0)
            found.append((record.main_attack.in_config, images, {"sa": sa, "ra": ra, "attack": attack}))
    return max(reversed(found), key=lambda item: item[:2])[2] if found else {}


def describe(trained: Trained, branch: Branch, **facts: Any) -> Card:
    """The card of a network from a trained run; `facts` are the client, its domain and the measurements."""
    experiment = trained.experiment
    return Card.model_validate(
        {
            "network": experiment.model.name,
            "width": experiment.model.width,
            "classes": trained.classes,
            "image_shape": trained.image_shape,
            "method": trained.plan.method.name,
            "branch": branch.value,
            "folded": 0,
            "data": experiment.data.name,
            "run": experiment.key(),
            "round": trained.state.round,
            "attack": experiment.attack.model_dump(mode="json"),
            "versions": {name: version(name) for name in ("fedrbn", "torch")},
        }
        | facts
    )


def export_network(net: nn.Module, card: Card, path: Path | str, *, folding: bool = True) -> Exported:
    """Write an ordinary network and its card; the suffix decides the format: .safetensors, .onnx or .pt2."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ModelFileError(f"got {path.name}; expected a name ending in {', '.join(SUFFIXES)}. Change the ending.")
    net = net.eval()
    example = torch.rand(16, *card.image_shape, generator=generator(0, "export", "example"))
    result = fold(net, example[:2]) if folding else None
    shipped = result.net if result else net
    card = card.model_copy(update={"folded": len(result.folded) if result else 0})
    write = {".safetensors": _write_safetensors, ".onnx": _write_onnx, ".pt2": _write_pt2}[path.suffix]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        draft = Path(folder) / path.name
        write(shipped, card, example, draft)
        again = read(draft, network=card.network, trust=True)  # trusted: it was written just above
        reference = without_gradient(net)
        deviation = _agreement(reference(example), again.logits(example))
        before, after = _milliseconds(reference, example), _milliseconds(again.logits, example)
        draft.replace(path)
    return Exported(
        path=path,
        card=card,
        deviation=deviation,
        kept=result.kept if result else {},
        bytes_before=sum(tensor.nbytes for tensor in tensors(net).values()),
        bytes_after=path.stat().st_size,
        milliseconds_before=before,
        milliseconds_after=after,
    )


def _agreement(expected: Tensor, got: Tensor) -> float:
    """The largest difference; refused if it is more than rounding."""
    deviation = float((expected - got).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    if not deviation <= TOLERANCE * scale:  # `not` also refuses NaN
        raise ModelFileError(
            f"got logits that differ by {deviation:.3g} after export; expected at most {TOLERANCE * scale:.3g}. "
            "Nothing was written. Try --no-fold or another format, and report the network."
        )
    return deviation


def _milliseconds(logits: Logits, example: Tensor, repeats: int = 20) -> float:
    times = []
    with one_thread():
        for _ in range(repeats):
            started = time.perf_counter()
            logits(example[:1])
            times.append(time.perf_counter() - started)
    return 1000 * median(times)


def _write_safetensors(net: nn.Module, card: Card, _: Tensor, path: Path) -> None:
    values = {name: tensor.contiguous() for name, tensor in tensors(net).items()}
    path.write_bytes(safetensors.torch.save(values, metadata={KEY: card.model_dump_json()}))


def _write_onnx(net: nn.Module, card: Card, example: Tensor, path: Path) -> None:
    try:
        import onnx  # noqa: F401, PLC0415  (an extra, and so is the next)
        import onnxscript  # noqa: F401, PLC0415
    except ImportError:
        raise ModelFileError(
            f"got {path.name}, but onnx or onnxscript is not installed; expected the extra: "
            "pip install 'fedrbn[export]'"
        ) from None
    with _quiet():
        program = torch.onnx.export(
            net,
            (example[:2],),
            dynamo=True,
            verbose=False,
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes=_any_batch(),
        )
    if program is None:
        raise ModelFileError("got nothing from torch.onnx.export; expected a program. Export to safetensors instead.")
    for node in program.model.graph.all_nodes():  # source locations, which contain paths of this machine
        node.metadata_props.clear()
    program.model.metadata_props[KEY] = card.model_dump_json()
    program.save(str(path), external_data=False)


def _write_pt2(net: nn.Module, card: Card, example: Tensor, path: Path) -> None:
    with _quiet():
        program = torch.export.export(net, (example[:2],), dynamic_shapes=_any_batch())
        torch.export.save(program, str(path), extra_files={f"{KEY}.json": json.dumps(card.model_dump(mode="json"))})


def _any_batch() -> Any:
    """A dynamic shape: the network's input may have any number of images."""
    return ({0: torch.export.Dim("batch")},)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of PyTorch's exporters about their own deprecations and about a package that is not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)
