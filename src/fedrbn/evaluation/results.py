"""Results for use in Python: values by name, a table in a notebook, a pandas DataFrame on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedrbn.errors import EvaluationError
from fedrbn.evaluation import notebook
from fedrbn.evaluation.records import EvaluationRecord
from fedrbn.evaluation.tables import comparison_table, evaluation_table

if TYPE_CHECKING:
    import pandas


class Evaluation(dict[str, Any]):
    """The record of an evaluation as JSON values: `evaluation["mean"]["ra"]`. A notebook shows it as a table."""

    @property
    def record(self) -> EvaluationRecord:
        """The same record with validated types."""
        return EvaluationRecord.from_json(self)

    def _repr_html_(self) -> str:
        return html(evaluation_table(self.record))

    def to_frame(self) -> pandas.DataFrame:
        """One row per client: domain, role, the branch that predicts, and every measured accuracy."""
        return frame(self["users"], "client")


@dataclass(frozen=True)
class MethodComparison:
    """Evaluations of several methods or settings on the same federation: for each a list with one entry per seed."""

    rows: Mapping[str, Sequence[Evaluation]]

    def __getitem__(self, row: str) -> Sequence[Evaluation]:
        """The evaluations of one row."""
        return self.rows[row]

    def table(self) -> Table:
        """The table that `fedrbn compare` prints."""
        return comparison_table({row: [one.record for one in found] for row, found in self.rows.items()})

    def __str__(self) -> str:
        return text(self.table())

    def _repr_html_(self) -> str:
        return html(self.table())

    def to_frame(self) -> pandas.DataFrame:
        """One row per method or setting and seed, one column per mean accuracy."""
        values = [{"row": row, "seed": one["seed"], **one["mean"]} for row, found in self.rows.items() for one in found]
        return _pandas().DataFrame(values).set_index(["row", "seed"])


def html(table: Table) -> str:
    """A table as HTML: title, header, rows and caption."""
    rows = zip(*(column.cells for column in table.columns), strict=True)
    header = (str(column.header) for column in table.columns)
    return notebook.table(str(table.title or ""), header, rows, str(table.caption or ""))


def text(table: Table, width: int = 140) -> str:
    """A table as plain text."""
    page = Console(file=StringIO(), width=width, markup=False, emoji=False)
    page.print(table)
    return page.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def frame(rows: Mapping[str, Mapping[str, Any]], index: str) -> pandas.DataFrame:
    """A DataFrame with one row per key; `index` names the keys."""
    return _pandas().DataFrame.from_dict(rows, orient="index").rename_axis(index)


def _pandas() -> Any:
    try:
        import pandas  # noqa: PLC0415  (nothing else needs it)
    except ImportError:
        raise EvaluationError(
            "got to_frame() without pandas; expected it to be installed. Install it: pip install pandas"
        ) from None
    return pandas
