"""Small files in the true formats of the published data sets, written by other means than the readers."""

from __future__ import annotations

import bz2
import gzip
import io
import struct
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat

Pixels = NDArray[np.uint8]
OFFICE = [
    "backpack", "bike", "calculator", "headphones", "keyboard", "laptop", "monitor", "mouse", "mug", "projector",
]  # fmt: skip
DOMAINNET = [
    "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
]  # fmt: skip


def noise(seed: int, *shape: int) -> Pixels:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def digits(seed: int, count: int) -> Pixels:
    """Labels that go through 0 to 9."""
    return ((np.arange(count) + seed) % 10).astype(np.uint8)


def idx(array: Pixels) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder: Path, train: int = 12, test: int = 11, zipped: bool = True) -> dict[str, Pixels]:
    arrays = {}
    for part, prefix, count in (("train", "train", train), ("test", "t10k", test)):
        arrays[f"{part}_images"], arrays[f"{part}_labels"] = noise(count, count, 28, 28), digits(count, count)
        for kind, ending in (("images", "idx3"), ("labels", "idx1")):
            content = idx(arrays[f"{part}_{kind}"])
            name = f"{prefix}-{kind}-{ending}-ubyte"
            (folder / f"{name}.gz" if zipped else folder / name).write_bytes(
                gzip.compress(content) if zipped else content
            )
    return arrays


def svhn(folder: Path, compress: bool = True, dtype: str = "u1") -> dict[str, Pixels]:
    arrays = {}
    for part, count in (("train", 12), ("test", 10)):
        images, labels = noise(count, count, 32, 32, 3), digits(count, count)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
        published = np.where(labels == 0, 10, labels).astype(dtype)[:, None]
        matrix = {"X": images.transpose(1, 2, 3, 0), "y": published}
        savemat(folder / f"{part}_32x32.mat", matrix, do_compression=compress)
    return arrays


def usps(folder: Path) -> dict[str, Pixels]:
    """Values a little above k/255 in [0, 1], which floor to k; written in [-1, 1] with six digits."""
    arrays = {}
    for part, name, count in (("train", "usps.bz2", 12), ("test", "usps.t.bz2", 10)):
        images, labels = noise(count, count, 16, 16), digits(count, count)
        images[images == 255] = 254
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
        values = (images.reshape(count, 256) + 0.5) / 255 * 2 - 1
        lines = [
            f"{label + 1} " + " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(row)) + " \n"
            for label, row in zip(labels, values, strict=True)
        ]
        (folder / name).write_bytes(bz2.compress("".join(lines).encode()))
    return arrays


def png(image: Pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return buffer.getvalue()


def jpeg(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(seed, 10, 12, 3)).save(buffer, format="JPEG")
    return buffer.getvalue()


def mnist_m(folder: Path) -> dict[str, Pixels]:
    arrays = {}
    for part, count in (("train", 12), ("test", 10)):
        images, labels = noise(count, count, 32, 32, 3), digits(count, count)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels}
        (folder / f"mnist_m_{part}").mkdir()
        for row, image in enumerate(images):
            (folder / f"mnist_m_{part}" / f"{row:08}.png").write_bytes(png(image))
        lines = [f"{row:08}.png {label}\n" for row, label in enumerate(labels)]
        (folder / f"mnist_m_{part}_labels.txt").write_text("".join(lines))
    return arrays


def office(folder: Path, caltech: str = "caltech10") -> dict[str, list[bytes]]:
    """Two images for each of the ten classes; the contents by domain, in the order of class and file."""
    contents: dict[str, list[bytes]] = {}
    for number, domain in enumerate(("amazon", caltech, "dslr", "webcam")):
        for label, name in enumerate(OFFICE):
            (folder / domain / name).mkdir(parents=True)
            for i in range(2):
                content = jpeg(1000 * number + 10 * label + i)
                (folder / domain / name / f"frame_{i:04}.jpg").write_bytes(content)
                contents.setdefault("caltech" if domain == caltech else domain, []).append(content)
    return contents


def domainnet_zip(path: Path, per_class: int = 3, extra: dict[str, bytes] | None = None) -> dict[str, bytes]:
    """A domain's zip with the ten classes and one more; the kept members' contents by name."""
    domain, kept = path.stem, {}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{domain}/", "")
        archive.writestr(f"{domain}/aircraft_carrier/{domain}_001_000001.jpg", jpeg(0))
        for label, name in enumerate(DOMAINNET):
            for i in range(per_class):
                member = f"{domain}/{name}/{domain}_{label:03}_{i:06}.jpg"
                kept[member] = jpeg(len(domain) * 10_000 + 100 * label + i)
                archive.writestr(member, kept[member])
        for member, content in (extra or {}).items():
            archive.writestr(member, content)
    return kept
