"""Photographs in memory: any folder `root/<domain>/<class>/*.jpg|jpeg|png`, and Office-Caltech10.

A domain that holds exactly the folders `train` and `test`, each with class folders, is split as given; any other is
split 80/20 within each class, always the same way.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedrbn.data.imaging import to_channels_first
from fedrbn.data.prepared import prepared_folder, read_archive
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.split import stratified

SIZE = 256
MOST_PIXELS = 50_000_000
"""Larger images are refused before they are decoded: a small file can unpack to gigabytes."""
TEST_SHARE = 0.2
SPLIT_SEED = 0
OFFICE_DOMAINS = ("amazon", "caltech", "dslr", "webcam")

_SUFFIXES = {".jpg", ".jpeg", ".png"}
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


def image_folder(root: Path, image_size: int | None = None) -> DataSet:
    """The domains below `root` in alphabetical order, every image squeezed to image_size x image_size (256)."""
    folders = _folders(root)
    if not folders:
        raise ValueError(f"got {root} without folders; expected {_LAYOUT}.")
    classes = _class_names(folders)
    domains = tuple(_domain(folder, classes, image_size or SIZE) for folder in folders)
    return DataSet(root.resolve().name, domains, classes)


def office_caltech10(image_size: int | None = None) -> DataSet:
    """Amazon, Caltech, DSLR and Webcam photographs of ten kinds of object, from $FEDRBN_DATA/office_caltech10."""
    folder = prepared_folder("office-caltech10", "office_caltech10")
    archives = {name: _office_archive(folder / f"{name}.npz") for name in OFFICE_DOMAINS}
    classes = {name: tuple(str(label) for label in arrays["class_names"]) for name, arrays in archives.items()}
    if len(set(classes.values())) > 1:
        raise ValueError(f"got different class_names in {folder}: {classes}; expected the same. Prepare it again.")
    domains = tuple(_office_domain(name, arrays, image_size or SIZE) for name, arrays in archives.items())
    return DataSet("office-caltech10", domains, classes["amazon"])


def decode(source: Path | BinaryIO, name: str, size: int) -> NDArray[np.uint8]:
    """One JPEG or PNG as uint8 [size, size, 3]; errors name it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Only these two decoders: a file is what its content says, and Pillow knows formats that run programs.
            with Image.open(source, formats=("JPEG", "PNG")) as image:
                _check_header(image, name)
                square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except UnidentifiedImageError as error:
        raise ValueError(f"got {name}, which is no JPEG or PNG; expected an image. Remove or replace it.") from error
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for broken PNG chunks
        raise ValueError(
            f"got {name}, which cannot be decoded ({error}); expected a whole image. Replace it."
        ) from error
    return np.asarray(square)


def _check_header(image: Image.Image, name: str) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise _too_large(name, f"{image.width} x {image.height} pixels")
    if image.mode not in _MODES:
        raise ValueError(f"got {name} with pixels of mode {image.mode}; expected 8 bits per channel. Convert it.")


def _too_large(name: str, size: str) -> ValueError:
    return ValueError(f"got {name}: {size}; expected at most {MOST_PIXELS:,} pixels. Reduce or remove it.")


_LAYOUT = "<root>/<domain>/<class>/*.jpg|jpeg|png, or <root>/<domain>/train|test/<class>/*"


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_split(domain: Path) -> bool:
    return {path.name for path in _folders(domain)} == {"train", "test"}


def _class_names(domains: list[Path]) -> tuple[str, ...]:
    """The class folders, which must be the same everywhere: else a misspelt one would become a class of its own."""
    parents = [
        parent
        for domain in domains
        for parent in ((domain / "train", domain / "test") if _is_split(domain) else (domain,))
    ]
    names = {parent: {path.name for path in _folders(parent)} for parent in parents}
    every = sorted(set().union(*names.values()))
    for parent, found in names.items():
        if missing := [name for name in every if name not in found]:
            raise ValueError(
                f"got {parent} without class folder {', '.join(missing)}; expected the same classes in every domain: "
                f"{_LAYOUT}. Check the spelling, or make an empty folder for a class that this domain lacks."
            )
    if not every:
        raise ValueError(f"got {domains[0].parent} without class folders; expected {_LAYOUT}.")
    return tuple(every)


def _domain(folder: Path, classes: tuple[str, ...], size: int) -> Domain:
    if _is_split(folder):
        train, test = (_samples(folder / part, classes, size) for part in ("train", "test"))
        return Domain(folder.name, train, test, folder.name)
    return _split_domain(folder.name, _samples(folder, classes, size))


def _samples(folder: Path, classes: tuple[str, ...], size: int) -> Samples:
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((folder / name).iterdir())
        if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")
    ]
    if not files:
        raise ValueError(f"got no images below {folder}; expected {_LAYOUT}.")
    images = np.empty((len(files), size, size, 3), dtype=np.uint8)
    for row, (path, _) in enumerate(files):
        images[row] = decode(path, str(path), size)
    return Samples(to_channels_first(images), torch.tensor([label for _, label in files]))


def _split_domain(name: str, samples: Samples) -> Domain:
    train, test = stratified(samples.labels.numpy(), TEST_SHARE, SPLIT_SEED)
    if not len(test):
        raise ValueError(
            f"got one image per class in domain {name!r}; expected at least two of some class, to train and "
            "to test on. Add images, or give the parts yourself as train/ and test/ folders."
        )
    return Domain(name, samples.take(torch.from_numpy(train)), samples.take(torch.from_numpy(test)), name)


def _office_archive(path: Path) -> dict[str, NDArray[Any]]:
    arrays = read_archive(path, ("jpeg_data", "offsets", "labels", "class_names"))
    data, offsets, labels, names = (arrays[key] for key in ("jpeg_data", "offsets", "labels", "class_names"))
    well_formed = (
        data.dtype == np.uint8
        and data.ndim == offsets.ndim == labels.ndim == names.ndim == 1
        and offsets.dtype.kind == labels.dtype.kind.replace("u", "i") == "i"
        and len(offsets) == len(labels) + 1 > 1
        and offsets[0] == 0
        and offsets[-1] == len(data)
        and bool((np.diff(offsets) > 0).all())
        and 0 <= labels.min() <= labels.max() < len(names)
    )
    if not well_formed:
        shapes = {key: f"{array.dtype}{list(array.shape)}" for key, array in arrays.items()}
        raise ValueError(
            f"got {path} with {shapes}; expected jpeg_data uint8[bytes], rising offsets int64[n + 1] from 0 to the "
            "number of bytes, labels uint8[n] that index class_names. Prepare the file again."
        )
    return arrays


def _office_domain(name: str, arrays: dict[str, NDArray[Any]], size: int) -> Domain:
    data, offsets, labels = arrays["jpeg_data"], arrays["offsets"], arrays["labels"].astype(np.int64)
    images = np.empty((len(labels), size, size, 3), dtype=np.uint8)
    for row in range(len(labels)):
        jpeg = io.BytesIO(data[offsets[row] : offsets[row + 1]].tobytes())
        images[row] = decode(jpeg, f"image {row} of {name}.npz", size)
    return _split_domain(name, Samples(to_channels_first(images), torch.from_numpy(labels)))
