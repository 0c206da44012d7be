"""Small files that unpack to gigabytes, or claim to: each is read in a process that may not have so much memory.

python -m fuzz.bombs FOLDER          # one JSON line for each bomb: what happened, and the memory it took
"""

# ruff: noqa: PLC0415  (what reads a bomb is imported where it is tried)

from __future__ import annotations

import bz2
import gzip
import io
import json
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

MEGABYTE = 2**20
HEADROOM = 3072 * MEGABYTE
"""Address space that reading may take on top of what the interpreter and PyTorch have when it starts: readers accept
up to 1 GiB of data and hold it twice at most, and a bomb here would take 4 GiB or more."""


@dataclass(frozen=True)
class Bomb:
    """A file, how it is made, and what reads it."""

    what: str
    name: str
    write: Callable[[Path], object]
    read: Callable[[Path], object]


def zeros(megabytes: int) -> bytes:
    return bytes(megabytes * MEGABYTE)


def repeated(compress: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Streams of zeros one after the other, which readers of gzip and bzip2 join: 4 GiB."""
    return lambda path: path.write_bytes(compress(zeros(64)) * 64)


def deflated(start: bytes, megabytes: int) -> bytes:
    """A zlib stream of these bytes and so many zeros; its checksum is wrong, but that comes at the very end."""
    packer = zlib.compressobj(9)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(zeros(64)) + packer.flush(zlib.Z_FULL_FLUSH)  # may be repeated: it refers to nothing
    return first + block * (megabytes // 64) + packer.flush()


def mat(path: Path) -> None:
    """A compressed array whose data never seem to end."""
    content = deflated(struct.pack("<II", 14, 2**31), 2048)
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(126) + b"IM" + struct.pack("<II", 15, len(content)) + content)


def zipped(members: dict[str, int], head: bytes = b"") -> Callable[[Path], object]:
    """Members of so many megabytes of zeros."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, megabytes in members.items():
                with archive.open(name, "w", force_zip64=True) as member:
                    _fill(member, head, megabytes)

    return write


def _fill(member: IO[bytes], head: bytes, megabytes: int) -> None:
    member.write(head)
    for _ in range(megabytes // 64):
        member.write(zeros(64))


def npy_header(*shape: int) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *extra: bytes) -> Callable[[Path], object]:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    parts = b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", deflated(b"", 64)) + chunk(b"IEND", b"")
    return lambda path: path.write_bytes(parts)


def jpeg(path: Path) -> None:
    """A small picture whose header says 65,500 x 65,500."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, format="JPEG")
    content = bytearray(buffer.getvalue())
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 65500, 65500)
    path.write_bytes(content)


def hdf5(path: Path) -> None:
    """A million rows that were never written: HDF5 fills them in."""
    import h5py

    with h5py.File(path, "w") as file:
        for part in ("train", "test"):
            file.create_dataset(f"{part}/data", (1_000_000, 256), "f8", chunks=(1000, 256), compression="gzip")
            file.create_dataset(f"{part}/target", (1_000_000,), "i8", chunks=(1000,), compression="gzip")


def safetensors(header: dict[str, Any]) -> Callable[[Path], object]:
    text = json.dumps(header).encode()
    return lambda path: path.write_bytes(len(text).to_bytes(8, "little") + text)


def model(**changes: Any) -> Callable[[Path], object]:
    """A model file without weights, whose card describes a network that fits into no memory."""
    card = {
        "network": "digits", "width": 1.0, "classes": ["a", "b"], "image_shape": [3, 28, 28], "client": "c",
        "domain": "d", "method": "fedrbn", "branch": "clean", "folded": 0, "data": "x", "run": "0", "round": 1,
        "attack": {}, "versions": {},
    }  # fmt: skip
    return safetensors({"__metadata__": {"fedrbn": json.dumps({**card, **changes})}})


def toml(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


def bombs() -> Iterator[Bomb]:
    """All of them, with the readers imported here, in the process that tries them."""
    from fedrbn import config
    from fedrbn.data.prepared import read_archive
    from fedrbn.data.raw.idx import read_idx
    from fedrbn.data.raw.mat import read_mat
    from fedrbn.data.raw.photographs import read_domainnet
    from fedrbn.data.raw.usps import read_libsvm, read_usps
    from fedrbn.data.sets import cache
    from fedrbn.data.sets.folder import decode
    from fedrbn.fleet import description
    from fedrbn.models import model_file
    from fuzz.cases import ACCEPTED, REFUSED

    def picture(path: Path) -> object:
        return decode(path, path.name, 28)

    def cached(path: Path) -> str:  # one that is not as expected is made anew, without a word
        return REFUSED if cache._read(path, cache.Expected(1, 1, (3, 28, 28), 10)) is None else ACCEPTED

    def archive(path: Path) -> object:
        return read_archive(path, ("train_images",))

    yield Bomb("gzip of 4 GiB as MNIST", "x.gz", repeated(gzip.compress), lambda path: read_idx(path, 3))
    yield Bomb("bzip2 of 4 GiB as USPS", "usps.bz2", repeated(bz2.compress), read_libsvm)
    rows = bz2.compress(b"1\n" * 5_000_000)
    yield Bomb("bzip2 of 5,000,000 empty rows", "usps.bz2", lambda path: path.write_bytes(rows), read_libsvm)
    yield Bomb("HDF5 with rows that were never written", "usps.h5", hdf5, lambda path: read_usps(path.parent))
    yield Bomb("compressed MATLAB array of 2 GiB", "x.mat", mat, read_mat)
    members = {f"real/bird/{number}.png": 256 for number in range(2)}
    yield Bomb("zip with pictures of 256 MiB", "real.zip", zipped(members), read_domainnet)
    large = npy_header(1536 * MEGABYTE)
    yield Bomb("npz that holds 1.5 GiB", "m.npz", zipped({"train_images.npy": 1536}, large), archive)
    yield Bomb("npz that claims 1 TB", "m.npz", zipped({"train_images.npy": 64}, npy_header(10**12)), archive)
    names = {f"{part}_{what}.npy": 384 for part in ("train", "test") for what in ("images", "labels")}
    full = zipped(names, npy_header(384 * MEGABYTE))
    yield Bomb("cache file that holds 1.5 GiB", "k.npz", full, cached)
    yield Bomb("PNG of 60,000 x 60,000", "x.png", png(60_000, 60_000), picture)
    yield Bomb("PNG of 2³¹ - 1 squared", "x.png", png(2**31 - 1, 2**31 - 1), picture)
    text = chunk(b"zTXt", b"c\0\0" + deflated(b"", 4096))
    yield Bomb("PNG with 4 GiB of text", "x.png", png(8, 8, text), picture)
    profile = chunk(b"iCCP", b"c\0\0" + deflated(b"", 4096))
    yield Bomb("PNG with a colour profile of 4 GiB", "x.png", png(8, 8, profile), picture)
    yield Bomb("JPEG of 65,500 x 65,500", "x.jpg", jpeg, picture)
    yield Bomb("model for images of 10⁶ x 10⁶", "m.safetensors", model(image_shape=[3, 10**6, 10**6]), model_file.read)
    yield Bomb("model for images of 1000 x 1000", "m.safetensors", model(image_shape=[3, 1000, 1000]), model_file.read)
    wide = model(width=4.0, network="alexnet", classes=[str(number) for number in range(400_000)])
    yield Bomb("model with 400,000 classes", "m.safetensors", wide, model_file.read)
    claim = safetensors({"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}})
    yield Bomb("safetensors that claims 4 TB", "m.safetensors", claim, model_file.read)
    device = '[[device]]\nid = "x"\ndomain = "d"\nsamples = 1\nmacs_per_second = 1.0\ncount = 1_000_000_000\n'
    yield Bomb("fleet of 10⁹ devices", "f.toml", toml(f"deadline = 1\n{device}"), description.read)
    yield Bomb("TOML nested 10⁵ deep", "c.toml", toml(f"a = {'[' * 100_000}"), config.read)


def main(folder: Path) -> None:
    """Try all, each under the limit."""
    import torch  # noqa: F401  (before the limit is set: it takes address space of its own)

    from fuzz.cases import refusal

    for number, bomb in enumerate(bombs()):
        place = folder / str(number)
        place.mkdir()
        path = place / bomb.name
        bomb.write(path)
        size = path.stat().st_size
        with limited():
            try:
                happened = refusal(lambda bomb=bomb, path=path: bomb.read(path))  # type: ignore[misc]
            except AssertionError as error:
                happened = f"failed: {error}"[:500]
        path.unlink()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"what": bomb.what, "bytes": size, "happened": happened, "peak_mb": peak}), flush=True)


class limited:  # noqa: N801  (used as a context manager)
    """HEADROOM more address space than now, and no more."""

    def __enter__(self) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self.before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, self.before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_AS, self.before)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
