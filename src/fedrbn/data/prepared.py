"""Prepared data files: found through FEDRBN_DATA, plain NumPy archives without pickles, checked before use."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VARIABLE = "FEDRBN_DATA"


def prepared_folder(dataset: str, subfolder: str) -> Path:
    """The folder of this data set's files."""
    remedy = (
        f"Set {VARIABLE} to the folder that holds {subfolder}/, or use data.name = 'digits-mini', which needs none."
    )
    root = os.environ.get(VARIABLE)
    if not root:
        raise ValueError(f"got no {VARIABLE} in the environment; expected it for data {dataset!r}. {remedy}")
    folder = Path(root).expanduser() / subfolder
    if not folder.is_dir():
        raise ValueError(f"got {VARIABLE}={root}, which has no {subfolder}/; expected the folder {folder}. {remedy}")
    return folder


def read_archive(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """These arrays of a .npz file."""
    if not path.is_file():
        raise ValueError(
            f"got no file {path}; expected a .npz with {', '.join(names)}. Put it there, point {VARIABLE} elsewhere, "
            "or use data.name = 'digits-mini', which needs no files."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [name for name in names if name not in archive]
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)} and has {', '.join(archive)}")
            return {name: archive[name] for name in names}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"got {path}, which cannot be used: {error}; expected a .npz with {', '.join(names)} and no pickled "
            "objects. Prepare the file again."
        ) from error
