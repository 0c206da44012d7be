"""Prepared photographs: Office-Caltech10, and the ten classes of DomainNet that FedBN and the paper use.

Each domain is a file `<domain>.npz` with the concatenated image files in `jpeg_data` (uint8), their start positions in
`offsets`, and `labels` that index `class_names`. In DomainNet's files, `test` (bool) marks the images of the test part.
Office-Caltech10 has no published parts, so each class is split 80/20, always the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrbn.data.imaging import to_channels_first
from fedrbn.data.official import DOMAINNET_DOMAINS, OFFICE_DOMAINS
from fedrbn.data.prepared import prepared_folder, read_archive
from fedrbn.data.samples import DataSet, Domain, Samples
from fedrbn.data.sets.folder import SIZE, decode_all, split_domain
from fedrbn.errors import DataError

_ARRAYS = ("jpeg_data", "offsets", "labels", "class_names")


def office_caltech10(image_size: int | None = None) -> DataSet:
    """Amazon, Caltech, DSLR and Webcam photographs of ten classes of objects, from $FEDRBN_DATA/office_caltech10."""
    return _photographs("office-caltech10", "office_caltech10", OFFICE_DOMAINS, _ARRAYS, image_size)


def domainnet(image_size: int | None = None) -> DataSet:
    """Photographs and drawings of ten classes of objects in six styles, from $FEDRBN_DATA/domainnet."""
    return _photographs("domainnet", "domainnet", DOMAINNET_DOMAINS, (*_ARRAYS, "test"), image_size)


def _photographs(
    name: str, subfolder: str, domains: tuple[str, ...], arrays: tuple[str, ...], image_size: int | None
) -> DataSet:
    folder = prepared_folder(name, subfolder)
    archives = {domain: _archive(folder / f"{domain}.npz", arrays) for domain in domains}
    classes = {domain: tuple(str(label) for label in archive["class_names"]) for domain, archive in archives.items()}
    if len(set(classes.values())) > 1:
        raise DataError(f"got different class_names in {folder}: {classes}; expected the same. Prepare it again.")
    loaded = tuple(_domain(domain, archive, image_size or SIZE) for domain, archive in archives.items())
    return DataSet(name, loaded, classes[domains[0]], augment=True)


def _archive(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    arrays = read_archive(path, wanted)
    data, offsets, labels, names = (arrays[key] for key in _ARRAYS)
    well_formed = (
        data.dtype == np.uint8
        and data.ndim == offsets.ndim == labels.ndim == names.ndim == 1
        and offsets.dtype.kind == labels.dtype.kind.replace("u", "i") == "i"
        and len(offsets) == len(labels) + 1 > 1
        and offsets[0] == 0
        and offsets[-1] == len(data)
        and bool((np.diff(offsets) > 0).all())
        and 0 <= labels.min() <= labels.max() < len(names)
        and ("test" not in arrays or (arrays["test"].dtype == np.bool_ and arrays["test"].shape == labels.shape))
    )
    if not well_formed:
        shapes = {key: f"{array.dtype}{list(array.shape)}" for key, array in arrays.items()}
        raise DataError(
            f"got {path} with {shapes}; expected jpeg_data uint8[bytes], rising offsets int64[n + 1] from 0 to the "
            "number of bytes, labels uint8[n] that index class_names, test bool[n]. Prepare the file again."
        )
    return arrays


def _domain(name: str, arrays: dict[str, NDArray[Any]], size: int) -> Domain:
    data, offsets, labels = arrays["jpeg_data"], arrays["offsets"], arrays["labels"].astype(np.int64)

    def read(row: int) -> tuple[bytes, str]:
        return data[offsets[row] : offsets[row + 1]].tobytes(), f"image {row} of {name}.npz"

    images = decode_all(len(labels), read, size)
    samples = Samples(to_channels_first(images), torch.from_numpy(labels))
    if "test" not in arrays:
        return split_domain(name, samples)
    train, test = (samples.take(torch.from_numpy(np.flatnonzero(arrays["test"] == part))) for part in (False, True))
    return Domain(name, train, test, name)
