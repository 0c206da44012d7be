"""rounds.csv: the rounds of a run as a table for spreadsheets, generated from rounds.jsonl.

    round,lr,seconds,at,st,failed,loss,score,ra_at,sa_st
    1,0.01,2.31,5,20,0,2.294,0.41,0.22,0.46

`at` and `st` are the numbers of users whose update was used. Values that were not measured in a round are empty. The
file is rewritten whenever training starts, so it always agrees with the records.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

from fedrbn.evaluation.records import RoundRecord
from fedrbn.runs.directory import RunDirectory
from fedrbn.types import Role

NAME = "rounds.csv"
COLUMNS = ("round", "lr", "seconds", "at", "st", "failed", "loss", "score", "ra_at", "sa_st")


def write(directory: RunDirectory, records: Iterable[RoundRecord], roles: Mapping[str, Role]) -> None:
    """Write the table of these rounds; replaces an existing one."""
    lines = [_line(COLUMNS), *(_line(row(record, roles)) for record in records)]
    directory.folder.write(NAME, "".join(f"{line}\n" for line in lines).encode())


def add(directory: RunDirectory, record: RoundRecord, roles: Mapping[str, Role]) -> None:
    """Add the row of a round."""
    directory.folder.append(NAME, _line(row(record, roles)))


def row(record: RoundRecord, roles: Mapping[str, Role]) -> list[object]:
    """A round's values in the order of the columns."""
    counts = {role.value.lower(): sum(roles.get(client) is role for client in record.clients) for role in Role}
    of_record = (name for name in COLUMNS if name not in (*counts, "score"))
    values = counts | {name: getattr(record, name) for name in of_record} | {"score": record.validated("score")}
    return ["" if values[name] is None else values[name] for name in COLUMNS]


def _line(values: Iterable[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()
