"""table.json: written by `fedrbn reproduce`, read by figures, the report and the verdicts on claims."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from fedrbn.errors import StorageError
from fedrbn.files import MOST_TEXT, read_named
from fedrbn.reproduce.differences import Difference
from fedrbn.reproduce.table import Number


class TableFile(BaseModel):
    """The parts of the file that are read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    title: str
    place: str
    caption: str
    scale: str
    threat: str
    seeds: tuple[int, ...]
    versions: dict[str, list[str]] = {}
    stand_ins: dict[str, str]
    numbers: tuple[Number, ...]
    differences: tuple[Difference, ...] = ()


def read_table(file: Path) -> TableFile:
    """The table of a folder that `fedrbn reproduce` wrote."""
    try:
        return TableFile.model_validate_json(read_named(file, MOST_TEXT))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except OSError as error:
        reason = str(error)
    raise StorageError(
        f"got {file}, which cannot be read ({reason}); expected a table of fedrbn reproduce. It is damaged or from "
        "another version: leave that directory out, or create it again."
    )
