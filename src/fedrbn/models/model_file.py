"""A model file written by `fedrbn export`: its description (`Card`), how to read it, how to classify images with it.

model = read("pen.onnx")
model.card.classes, model.card.ra
model.logits(pixels)                       # float32 [n, channels, height, width] in [0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import safetensors
import torch
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor, nn

from fedrbn import nets
from fedrbn.attacks import Logits
from fedrbn.data.sets.folder import decode
from fedrbn.errors import ModelFileError
from fedrbn.files import read_named
from fedrbn.nets.fold import fold
from fedrbn.nets.state import load, tensors

KEY = "fedrbn"
"""Where a file stores its card: the metadata key in safetensors and ONNX; `fedrbn.json` inside a .pt2."""
SUFFIXES = (".safetensors", ".onnx", ".pt2")

_Side = Annotated[int, Field(ge=1, le=4096)]
_MOST_PIXELS = 2**22
"""Most values per image that a model file may declare: reading it runs the network on an image of that size."""
_MOST_CLASSES = 2**16
_SPARE_BYTES = 2**20
_MOST_ONNX = 2**31
"""In bytes; larger ONNX models keep their weights in other files, which are never opened."""


class Card(BaseModel):
    """What a model file says about itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["fedrbn-model/1"] = "fedrbn-model/1"
    network: str
    width: float = Field(gt=0, le=4)
    classes: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(min_length=1, max_length=_MOST_CLASSES)
    image_shape: tuple[_Side, _Side, _Side]
    preprocessing: str = "pixels in [0, 1]; normalisation is inside the network"
    client: str
    domain: str
    method: str
    branch: Literal["clean", "noised"]
    """The batch-norm statistics that it contains: BN_c or BN_a."""
    folded: int = Field(ge=0)
    """Batch-norm layers folded into the layer before them."""
    data: str
    run: str
    """The key of the experiment."""
    round: int = Field(ge=0)
    attack: dict[str, Any]
    """The attack that `ra` was measured with, ε in pixels."""
    sa: float | None = Field(default=None, ge=0, le=1)
    """Accuracy on the client's clean test images, before export; None if not measured."""
    ra: float | None = Field(default=None, ge=0, le=1)
    versions: dict[str, str]

    @field_validator("image_shape")
    @classmethod
    def _fits_memory(cls, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        if math.prod(shape) > _MOST_PIXELS:
            raise ModelFileError(f"got images of {math.prod(shape):,} values; expected at most {_MOST_PIXELS:,}")
        return shape


@dataclass(frozen=True)
class ModelFile:
    """A model file that has been read."""

    card: Card
    logits: Logits


@dataclass(frozen=True)
class Prediction:
    """The most likely class of an image and its probability: the softmax of the logits."""

    image: str
    label: str
    probability: float
    runner_up: str
    runner_up_probability: float


def read(path: Path | str, *, network: str | None = None, trust: bool = False) -> ModelFile:
    """Read a model file by its suffix.

    A safetensors file holds weights only, and its network must be a built-in one. For your own network pass
    `network="package.module:factory"`, because a file must not choose what code runs. When PyTorch reads a .pt2
    archive, it can run code from it: pass `trust` only for files that you made yourself.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"got {path}, which is not a file; expected a model written by fedrbn export.")
    readers: dict[str, Callable[[], ModelFile]] = {
        ".safetensors": lambda: _read_safetensors(path, network),
        ".onnx": lambda: _read_onnx(path),
        ".pt2": lambda: _read_pt2(path, trust),
    }
    if path.suffix not in readers:
        raise ModelFileError(f"got {path.name}; expected a file ending in {', '.join(SUFFIXES)}.")
    return readers[path.suffix]()


def predict(model: ModelFile, images: Sequence[Path | str]) -> list[Prediction]:
    """Classify image files; each is resized to the model's input size, as training images were."""
    pixels = torch.stack([_pixels(Path(image), model.card.image_shape) for image in images])
    with torch.no_grad():
        probabilities = model.logits(pixels).softmax(-1)
    names = model.card.classes
    if probabilities.shape != (len(images), len(names)):
        raise ModelFileError(
            f"got outputs of shape {tuple(probabilities.shape)} from the model; expected {len(names)} numbers for each "
            f"of {len(images)} images, as its description says. Export it again."
        )
    if not bool(probabilities.isfinite().all()):
        raise ModelFileError(
            "got outputs from the model that are NaN; expected a finite number for each class. Its weights are "
            "damaged: export it again."
        )
    found = []
    for image, row in zip(images, probabilities, strict=True):
        top = row.topk(min(2, len(names)))
        best, second = top.indices.tolist()[0], top.indices.tolist()[-1]
        found.append(Prediction(str(image), names[best], float(row[best]), names[second], float(row[second])))
    return found


def _pixels(path: Path, shape: tuple[int, int, int]) -> Tensor:
    channels, height, width = shape
    if channels not in (1, 3) or height != width:
        raise ModelFileError(
            f"got a model for images of {channels} x {height} x {width}; expected square images with 1 or 3 channels, "
            "to read image files. Call fedrbn.open_model(path).logits with your own tensors instead."
        )
    if not path.is_file():
        raise ModelFileError(f"got image {path}, which is not a file; expected a JPEG or PNG.")
    image = decode(path, str(path), height)
    array = image if channels == 3 else np.asarray(Image.fromarray(image).convert("L"))[:, :, None]
    return torch.tensor(array).permute(2, 0, 1).float().div(255)


def _card(text: str | None, path: Path) -> Card:
    try:
        return Card.model_validate_json(text or "")
    except ValidationError as error:
        raise ModelFileError(
            f"got {path} without a valid description ({error.error_count()} errors, first: "
            f"{error.errors()[0]['msg']}); expected a model written by fedrbn export."
        ) from None


def structure(card: Card, network: str | None = None) -> nn.Module:
    """The network that a card describes, folded as on export; its weights are not loaded yet."""
    name = network or card.network
    if network is None and name not in nets.NETWORKS:
        raise ModelFileError(
            f"got a model of the network {name!r}; expected one of {', '.join(nets.NETWORKS)}, because a file must not "
            f"choose what code runs. If you trust that code, repeat with --network {name}; or export to ONNX."
        )
    built = nets.build(name, len(card.classes), card.width, card.image_shape, seed=0).eval()
    return fold(built, torch.zeros(2, *card.image_shape)).net if card.folded else built


def _read_safetensors(path: Path, network: str | None) -> ModelFile:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            card = _card((file.metadata() or {}).get(KEY), path)
            values = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
    except (safetensors.SafetensorError, OSError) as error:
        raise ModelFileError(f"got {path}, which cannot be read ({error}); expected safetensors.") from None
    if network is None:
        _check_size(card, sum(value.nbytes for value in values.values()), path)
    net = structure(card, network)
    missing = sorted(tensors(net).keys() - values.keys())
    if missing:
        raise ModelFileError(
            f"got {path} without {missing[0]!r} and {len(missing) - 1} other tensors; expected all weights of "
            f"{card.network!r}. The network has changed since the export: export it again."
        )
    load(net, values)
    return ModelFile(card, without_gradient(net))


def _check_size(card: Card, held: int, path: Path) -> None:
    """Refuse a card that describes a larger network than the file has weights for, before building the network."""
    if card.network not in nets.NETWORKS:
        return  # refused by name
    with torch.device("meta"):  # tensors with a shape but no memory
        net = nets.build(card.network, len(card.classes), card.width, card.image_shape, seed=0)
    described = sum(tensor.nbytes for tensor in tensors(net).values())
    if described > 2 * held + _SPARE_BYTES:
        raise ModelFileError(
            f"got {path} with {held:,} bytes of weights; expected about {described:,}, which its description "
            f"({card.network!r}, {len(card.classes)} classes, images of {card.image_shape}) needs. "
            "Export it again."
        )


def _read_onnx(path: Path) -> ModelFile:
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # the error below reports problems; no log on the terminal
    try:
        content = read_named(path, _MOST_ONNX)
        # The model may name files with weights only in this folder. It is a file, so there is nothing in it to open.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.absolute()))
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        described = session.get_modelmeta().custom_metadata_map.get(KEY)
    except Exception as error:  # onnxruntime has a dozen error classes without a common base
        raise ModelFileError(f"got {path}, which onnxruntime cannot read ({error}); expected an ONNX model.") from None
    card = _card(described, path)

    def logits(pixels: Tensor) -> Tensor:
        try:
            return torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])
        except Exception as error:  # as above: the graph may not match the description
            raise ModelFileError(f"got {path}, which cannot be run ({error}); expected pixels to logits.") from None

    return ModelFile(card, logits)


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # noqa: PLC0415  (an extra)
    except ImportError:
        raise ModelFileError(
            "got an .onnx file, but onnxruntime is not installed; expected the extra: pip install 'fedrbn[export]'"
        ) from None
    return onnxruntime


def _read_pt2(path: Path, trust: bool) -> ModelFile:
    if not trust:
        raise ModelFileError(
            f"got {path}; expected .safetensors or .onnx, because reading a .pt2 can run code that is hidden in it. "
            "Export the model again in one of these formats, or add --trust if you made this file yourself."
        )
    extra = {f"{KEY}.json": ""}
    try:
        program = torch.export.load(str(path), extra_files=extra)
    except Exception as error:  # the zip file, its JSON or PyTorch's own archives inside may all fail
        raise ModelFileError(f"got {path}, which PyTorch cannot read ({error}); expected a .pt2 archive.") from None
    return ModelFile(_card(extra[f"{KEY}.json"], path), without_gradient(program.module()))


def without_gradient(net: nn.Module) -> Logits:
    """The network as a plain function of pixels."""

    def logits(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = net(pixels)
            return result

    return logits
