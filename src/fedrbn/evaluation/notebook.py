"""Values as HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any


def table(title: str, header: Iterable[str], rows: Iterable[Iterable[object]], caption: str = "") -> str:
    """A table with its title above and its caption below; everything is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    below = f"<p>{escape(caption)}</p>" if caption else ""
    return f"{above}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def mapping(title: str, values: Mapping[str, Any]) -> str:
    """A table of names and values, then a table for each value that is itself a table: a mapping of mappings."""
    tables = {name: value for name, value in values.items() if _is_table(value)}
    page = table(title, ("", "value"), ((name, _text(value)) for name, value in values.items() if name not in tables))
    for name, rows in tables.items():
        columns = list(dict.fromkeys(column for row in rows.values() for column in row))
        cells = ((key, *(_text(row.get(column)) for column in columns)) for key, row in rows.items())
        page += table(name, ("", *columns), cells)
    return page


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(isinstance(row, Mapping) for row in value.values())


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value)
