"""Image files in memory: any folder `root/<domain>/<class>/*.jpg|jpeg|png|webp`.

A domain that contains exactly the folders `train` and `test`, each with class folders, keeps this split; any other is
split 80/20 within each class, always the same way.
"""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fedrbn.data.imaging import to_channels_first
from fedrbn.data.memory_limit import empty_images
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.train_test import stratified
from fedrbn.errors import DataError
from fedrbn.hardware import cores

SIZE = 256
MOST_PIXELS = 50_000_000
"""Larger images are refused before decoding: a small file can unpack to gigabytes."""
_MOST_THREADS = 8
"""Each thread may hold one image of the largest size: 150 MB."""
TEST_SHARE = 0.2
SPLIT_SEED = 0
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}


def image_folder(root: Path, image_size: int | None = None) -> DataSet:
    """The domains below `root` in alphabetical order, every image resized to image_size x image_size (256).

    Files that are not images, or not where images should be, are left out; the data set's remarks say how many.
    """
    parts = parts_of(root)
    classes = _class_names(parts)
    domains = tuple(_domain(folders, domain.name, classes, image_size or SIZE) for domain, folders in parts.items())
    return DataSet(root.resolve().name, domains, classes, remarks=_counted(ignored_files(root, parts)))


def decode(source: Path | bytes, name: str, size: int | None) -> NDArray[np.uint8]:
    """A JPEG, PNG or WebP as uint8 RGB [height, width, 3], resized to size x size unless None; errors name it."""
    with _only_errors():
        return _decoded(source, name, size)


def decode_all(count: int, read: Callable[[int], tuple[Path | bytes, str]], size: int) -> NDArray[np.uint8]:
    """Decode `count` images into [count, size, size, 3]; `read` returns the source and the name of each for `decode`.

    One thread per core decodes, because Pillow releases Python's lock. Besides the result, memory holds only one
    unpacked image per thread.
    """
    images = empty_images(count, size)

    def place(row: int) -> None:
        images[row] = _decoded(*read(row), size)

    with _only_errors(), ThreadPoolExecutor(min(cores(), _MOST_THREADS)) as pool:
        for _ in pool.map(place, range(count)):  # raises the first error in the order of the files
            pass
    return images


@contextmanager
def _only_errors() -> Iterator[None]:
    """Silence Pillow's warnings about metadata within this block, in all threads: filters are per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _decoded(source: Path | bytes, name: str, size: int | None) -> NDArray[np.uint8]:
    if isinstance(source, Path) and not is_regular(source):
        raise DataError(f"got {name}, which is not a file; expected a JPEG or PNG. Remove or replace it.")
    try:
        # Allow only these three decoders: the content decides the format, and some of Pillow's formats run programs.
        file = source if isinstance(source, Path) else io.BytesIO(source)
        with Image.open(file, formats=("JPEG", "PNG", "WEBP")) as image:
            _check_header(image, name)
            colour = image.convert("RGB")
            square = colour if size is None else colour.resize((size, size), Image.Resampling.BILINEAR)
    except _Refused:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name, str(error)) from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"got {name}, which is not a JPEG, PNG or WebP; expected an image. Remove or replace it."
        ) from error
    except Exception as error:  # Pillow raises many errors for a broken file: SyntaxError, struct.error, …
        raise DataError(
            f"got {name}, which cannot be decoded ({error}); expected a complete image. Replace it."
        ) from error
    return np.array(square)


def is_regular(path: Path) -> bool:
    """Whether this is a regular file: reading a pipe or device never ends, and some names are not valid for a file."""
    try:
        return path.is_file()
    except OSError:
        return False


class _Refused(DataError):  # noqa: N818  (callers see a DataError)
    """An image that is refused because of its header."""


def _check_header(image: Image.Image, name: str) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise _too_large(name, f"{image.width} x {image.height} pixels")
    if image.mode not in _MODES:
        raise _Refused(f"got {name} with pixels of mode {image.mode}; expected 8 bits per channel. Convert it.")


def _too_large(name: str, size: str) -> _Refused:
    return _Refused(f"got {name}: {size}; expected at most {MOST_PIXELS:,} pixels. Reduce or remove it.")


_LAYOUT = "<root>/<domain>/<class>/*.jpg|jpeg|png|webp, or <root>/<domain>/train|test/<class>/*"


def subfolders(root: Path) -> list[Path]:
    """The folders in a folder, by name, without hidden ones."""
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def image_files(folder: Path) -> list[Path]:
    """The images in a folder, by name, without hidden ones."""
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def ignored_files(root: Path, parts: dict[Path, tuple[Path, ...]]) -> list[tuple[str, str]]:
    """Every file below `root` that is not read as an image, and why."""
    classes = {path for folders in parts.values() for folder in folders for path in subfolders(folder)}
    ignored = []
    for place, _, names in os.walk(root):
        folder = Path(place)
        for name in sorted(names):
            path = (folder / name).relative_to(root)
            if any(part.startswith(".") for part in path.parts):
                ignored.append((path.as_posix(), "hidden"))
            elif folder not in classes:
                ignored.append((path.as_posix(), "not directly in a class folder"))
            elif path.suffix.lower() not in SUFFIXES:
                ignored.append(
                    (path.as_posix(), f"with the suffix {path.suffix}" if path.suffix else "without a suffix")
                )
    return sorted(ignored)


def _counted(ignored: list[tuple[str, str]]) -> tuple[str, ...]:
    """A line that counts the ignored files by reason; empty if there are none."""
    if not ignored:
        return ()
    reasons = Counter(reason for _, reason in ignored)
    listed = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    files, known = "file" if len(ignored) == 1 else "files", ", ".join(SUFFIXES)
    return (f"{len(ignored)} {files} ignored (images are {known}): {listed}; fedrbn data check lists them",)


def parts_of(root: Path) -> dict[Path, tuple[Path, ...]]:
    """For each domain below `root`, the folders that contain class folders: train and test, or the domain itself."""
    domains = subfolders(root)
    if not domains:
        raise DataError(f"got {root} without folders; expected {_LAYOUT}.")
    return {
        domain: (domain / "train", domain / "test")
        if {path.name for path in subfolders(domain)} == {"train", "test"}
        else (domain,)
        for domain in domains
    }


def _class_names(domains: dict[Path, tuple[Path, ...]]) -> tuple[str, ...]:
    """The class folders, which must be the same everywhere: otherwise a misspelt name would become a new class."""
    names = {parent: {path.name for path in subfolders(parent)} for parts in domains.values() for parent in parts}
    every = sorted(set().union(*names.values()))
    for parent, found in names.items():
        if missing := [name for name in every if name not in found]:
            raise DataError(
                f"got {parent} without class folder {', '.join(missing)}; expected the same classes in every domain: "
                f"{_LAYOUT}. Check the spelling, or create an empty folder for a class that this domain lacks."
            )
    if not every:
        raise DataError(
            f"got {next(iter(domains)).parent} without class folders; expected {_LAYOUT}. Put the class folders "
            "into a folder for their domain, even if there is only one domain."
        )
    return tuple(every)


def _domain(parts: tuple[Path, ...], name: str, classes: tuple[str, ...], size: int) -> Domain:
    if len(parts) == 1:
        return split_domain(name, _samples(parts[0], classes, size))
    train, test = (_samples(part, classes, size) for part in parts)
    return Domain(name, train, test, name)


def _samples(folder: Path, classes: tuple[str, ...], size: int) -> Samples:
    files = [(path, label) for label, name in enumerate(classes) for path in image_files(folder / name)]
    if not files:
        raise DataError(f"got no images below {folder}; expected {_LAYOUT}.")
    images = decode_all(len(files), lambda row: (files[row][0], str(files[row][0])), size)
    return Samples(to_channels_first(images), torch.tensor([label for _, label in files]))


def split_domain(name: str, samples: Samples) -> Domain:
    """A domain whose images have no given parts, split 80/20 within each class."""
    train, test = stratified(samples.labels.numpy(), TEST_SHARE, SPLIT_SEED)
    if not len(test):
        raise DataError(
            f"got one image per class in domain {name!r}; expected at least two of some class, for training "
            "and for testing. Add images, or provide train/ and test/ folders."
        )
    return Domain(name, samples.take(torch.from_numpy(train)), samples.take(torch.from_numpy(test)), name)
