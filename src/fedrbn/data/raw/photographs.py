"""Photographs by domain and class: Office-Caltech10's folders, and DomainNet's zip files with their lists of parts."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from fedrbn.data.official import DOMAINNET_CLASSES, DOMAINNET_DOMAINS, OFFICE_CLASSES, OFFICE_DOMAINS
from fedrbn.data.raw.files import (
    MEGABYTE,
    MOST_IMAGE_BYTES,
    Photograph,
    RawPhotographs,
    broken,
    content_of,
    file_source,
    folder_source,
    image_content,
    read_bounded,
)
from fedrbn.data.sets.folder import SUFFIXES, image_files, subfolders
from fedrbn.errors import DataError

MOST_DOMAIN_BYTES = 4096 * MEGABYTE
"""Largest total size of the kept files of one domain."""
_MOST_TEXT = 64 * MEGABYTE
_ZIP_ERRORS = (
    OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, struct.error,
    IndexError, OverflowError, ValueError,
)  # fmt: skip
_PATH_PARTS = 3
_LONGEST_NAME = 255


def read_office(folder: Path) -> list[RawPhotographs]:
    """The four domains; Caltech's folder is called caltech10 or caltech."""
    found = []
    for domain in OFFICE_DOMAINS:
        names = ("caltech10", "caltech") if domain == "caltech" else (domain,)
        place = next((folder / name for name in names if (folder / name).is_dir()), None)
        if place is None:
            raise DataError(
                f"got {folder} without the folder {' or '.join(names)}; expected the four domains "
                f"{', '.join(OFFICE_DOMAINS)}, each with class folders. See `fedrbn data prepare --where`."
            )
        found.append(_read_folder(domain, place, [path.name for path in subfolders(place)], None))
    classes = {raw.domain: sorted({photo.class_name for photo in raw.photographs}) for raw in found}
    for domain, names_ in classes.items():
        if names_ != classes["amazon"] or len(names_) != OFFICE_CLASSES:
            raise DataError(
                f"got {len(names_)} classes with images in {domain} ({', '.join(names_[:12])}); expected the same "
                f"{OFFICE_CLASSES} in all four domains. Remove or rename the folders of other classes."
            )
    return found


def read_domainnet(source: Path) -> list[RawPhotographs]:
    """Every domain whose zip, or unpacked folder, is in this folder; or the one whose zip this is."""
    if source.is_file():
        places = {source.stem: source}
    else:
        places = {}
        for domain in DOMAINNET_DOMAINS:
            archive, unpacked = source / f"{domain}.zip", source / domain
            if archive.is_file() or unpacked.is_dir():
                places[domain] = archive if archive.is_file() else unpacked
    if not places or not places.keys() <= set(DOMAINNET_DOMAINS):
        raise DataError(
            f"got {source} without any of {', '.join(f'{domain}.zip' for domain in DOMAINNET_DOMAINS)}; expected one "
            "of them, or a folder with some of them. `fedrbn data prepare --where` says what to download."
        )
    return [_domainnet_domain(domain, place) for domain, place in places.items()]


def _domainnet_domain(domain: str, place: Path) -> RawPhotographs:
    parts = read_parts(place.parent, domain)
    raw = _read_folder(domain, place, DOMAINNET_CLASSES, parts) if place.is_dir() else _read_zip(domain, place, parts)
    for name in DOMAINNET_CLASSES:
        if not any(photo.class_name == name for photo in raw.photographs):
            raise DataError(
                f"got {place.name} without images of class {name}; expected {domain}/{name}/*.jpg. Download it again."
            )
    if parts is not None and (missing := parts.keys() - {f"{p.class_name}/{p.file_name}" for p in raw.photographs}):
        raise DataError(
            f"got {place.name} without {len(missing):,} of the files that {domain}_train.txt and {domain}_test.txt "
            f"list, such as {min(missing)}; expected all. Take the zip and the lists of the same version (cleaned or "
            "not), or remove the lists."
        )
    lists = () if parts is None else [file_source(place.parent / f"{domain}_{part}.txt") for part in ("train", "test")]
    return replace(raw, sources=(*raw.sources, *lists))


def read_parts(folder: Path, domain: str) -> dict[str, bool] | None:
    """Whether each listed `<class>/<file>` of the ten classes is a test image; None if there are no lists."""
    lists = {test: folder / f"{domain}_{part}.txt" for part, test in (("train", False), ("test", True))}
    there = [path for path in lists.values() if path.is_file()]
    if len(there) == 1:
        raise DataError(
            f"got {there[0].name} alone; expected {domain}_train.txt and {domain}_test.txt. Add the other one, or "
            "remove this one to split each class 80/20."
        )
    if not there:
        return None
    parts: dict[str, bool] = {}
    for test, path in lists.items():
        for number, line in enumerate(content_of(path, _MOST_TEXT).splitlines(), start=1):
            name, _, label = line.decode("utf-8", errors="replace").strip().rpartition(" ")
            steps = name.split("/")
            if len(steps) != _PATH_PARTS or steps[0] != domain or not label.isdecimal():
                raise DataError(
                    f"got line {number} of {path.name}: {line[:80]!r}; expected {domain}/<class>/<file> and a number. "
                    "Download it again."
                )
            if steps[1] in DOMAINNET_CLASSES and parts.setdefault("/".join(steps[1:]), test) is not test:
                raise DataError(
                    f"got {name} in both {domain}_train.txt and {domain}_test.txt; expected it in one. Download the "
                    "lists again."
                )
    return parts


def _read_folder(domain: str, folder: Path, classes: Collection[str], parts: dict[str, bool] | None) -> RawPhotographs:
    listed = (
        (name, path) for name in sorted(classes) if (folder / name).is_dir() for path in image_files(folder / name)
    )
    contents = ((name, path.name, image_content(path)) for name, path in listed)
    photographs = tuple(_kept(contents, parts, folder.name))
    return RawPhotographs(domain, photographs, (folder_source(folder.name, (p.content for p in photographs)),))


def _read_zip(domain: str, path: Path, parts: dict[str, bool] | None) -> RawPhotographs:
    """The ten classes of `<domain>/<class>/<file>` members. They are only read: nothing is extracted to disk."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = sorted(_members(archive, domain), key=lambda member: member.filename)
            contents = (
                (PurePosixPath(m.filename).parts[1], PurePosixPath(m.filename).name, _member_content(archive, m))
                for m in members
            )
            photographs = tuple(_kept(contents, parts, path.name))
    except _ZIP_ERRORS as error:
        raise broken(path.name, str(error)) from error
    return RawPhotographs(domain, photographs, (file_source(path),))


def _members(archive: zipfile.ZipFile, domain: str) -> Iterator[zipfile.ZipInfo]:
    for member in archive.infolist():
        steps = member.filename.split("/")
        if (
            len(steps) == _PATH_PARTS
            and steps[0] == domain
            and steps[1] in DOMAINNET_CLASSES
            and PurePosixPath(steps[2]).suffix.lower() in SUFFIXES
            and len(steps[2]) <= _LONGEST_NAME
        ):
            yield member


def _member_content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{member.filename} is compressed by method {member.compress_type}")
    with archive.open(member) as stream:
        return read_bounded(stream, MOST_IMAGE_BYTES, member.filename)


def _kept(contents: Iterator[tuple[str, str, bytes]], parts: dict[str, bool] | None, name: str) -> Iterator[Photograph]:
    """The files as photographs, without those missing from the lists; refused if their total size is too large."""
    size = 0
    for class_name, file_name, content in contents:
        if parts is not None and f"{class_name}/{file_name}" not in parts:
            continue
        size += len(content)
        if size > MOST_DOMAIN_BYTES:
            raise DataError(f"got more than {MOST_DOMAIN_BYTES:,} bytes of images in {name}; expected no more.")
        yield Photograph(content, class_name, file_name, None if parts is None else parts[f"{class_name}/{file_name}"])
