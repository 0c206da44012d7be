"""The runs that a declaration needs: one cell for each row and column, with its run at a scale for each seed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedrbn import config
from fedrbn.attacks import PGD
from fedrbn.config import Experiment, MethodConfig
from fedrbn.data import AVAILABLE
from fedrbn.errors import ConfigError
from fedrbn.federated.options import named, options, resolved
from fedrbn.reproduce.declarations import EXPERIMENTS, Column, Declaration, Part, Row
from fedrbn.reproduce.scales import Scale, scaled, with_changes

Threat = Literal["pixel", "authors-release"]

OUT, STORE = Path("results"), Path("runs")
"""The default folders of tables and runs."""

STAND_INS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("domainnet", "office-caltech10"): {
        "real": "amazon",
        "clipart": "caltech",
        "infograph": "dslr",
        "painting": "webcam",
    },
    ("digits", "digits-mini"): {
        "mnist": "plain",
        "svhn": "street",
        "usps": "pen",
        "synthdigits": "synthetic",
        "mnist_m": "texture",
    },
}
"""(Declared data, replacement data): the domains, each with its replacement."""

USUAL_STAND_IN = {"domainnet": "office-caltech10"}
"""The replacement if the declared data are not prepared here; tables name it."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table: what is read for each metric, the paper's numbers, and the run of each seed."""

    part: str
    row: str
    column: str
    read: tuple[str, ...]
    paper: tuple[float | None, ...]
    paper_std: tuple[float | None, ...]
    """Standard deviations of the paper's numbers; None if it prints none."""
    runs: tuple[Experiment, ...]
    """Empty if the setting does not exist on the replacement data."""
    data: str
    """The data that are used."""
    declared: str
    """The data of the paper."""

    @property
    def attacks(self) -> tuple[str, ...]:
        """Further attacks whose evaluation is needed for the numbers."""
        return tuple(text[3:-1] for text in self.read if text.startswith("ra["))


def cells(
    declaration: Declaration,
    scale: Scale,
    seeds: Sequence[int] = (1,),
    *,
    threat: Threat = "pixel",
    data: str | None = None,
    only: str = "",
) -> list[Cell]:
    """All cells in the order of the tables; `only` keeps those with this text in PART/ROW/COLUMN.

    `data` replaces the declared data where that is possible.
    """
    found = [
        _cell(declaration, part, row, index, scale, seeds, threat, data)
        for part in declaration.parts
        for row in part.rows
        for index in range(len(part.columns))
    ]
    if threat != "pixel" and any(cell.attacks for cell in found):
        raise ConfigError(
            f"got --threat {threat} for {declaration.name}, whose further attacks are in pixels; expected pixel. "
            "Leave --threat out."
        )
    chosen = [cell for cell in found if only.lower() in f"{cell.part}/{cell.row}/{cell.column}".lower()]
    if not chosen:
        raise ConfigError(f"got --only {only!r}; expected a part of PART/ROW/COLUMN, such as {_name(found[0])!r}.")
    return chosen


def command(
    experiment: str,
    scale: str,
    seeds: Sequence[int] = (),
    *,
    threat: Threat = "pixel",
    data: str | None = None,
    only: str = "",
    out: Path = OUT,
    store: Path = STORE,
) -> str:
    """The command that makes the table of an experiment; default settings are left out."""
    options = {
        "--scale": scale,
        "--seeds": ",".join(map(str, seeds)),
        "--threat": "" if threat == "pixel" else threat,
        "--data": data or "",
        "--only": only,
        "--out": "" if out == OUT else str(out),
        "--store": "" if store == STORE else str(store),
    }
    return shlex.join(
        ["fedrbn", "reproduce", experiment, *(part for pair in options.items() if pair[1] for part in pair)]
    )


def folder_name(name: str, scale: str, threat: Threat, data: str | None = None) -> str:
    """The folder of a table: settings that differ from the defaults are part of its name."""
    return "-".join([name, scale, *([threat] if threat != "pixel" else []), *([data] if data else [])])


def _name(cell: Cell) -> str:
    return f"{cell.part}/{cell.row}/{cell.column}"


def _cell(
    declaration: Declaration,
    part: Part,
    row: Row,
    index: int,
    scale: Scale,
    seeds: Sequence[int],
    threat: Threat,
    data: str | None,
) -> Cell:
    column = part.columns[index]
    whole = declared_run(part, row, column)
    used = running_data(whole.data.name, data)
    domains = STAND_INS.get((whole.data.name, used), {})
    placed = whole if used == whole.data.name else _on_stand_in(whole, used, domains)
    runs: tuple[Experiment, ...] = ()
    if placed is not None:
        smaller = with_changes(scaled(placed, scale), {"attack": {"threat": threat}})
        runs = tuple(resolved(with_changes(smaller, {"run": {"seed": seed, "workers": 1}})) for seed in seeds)
    return Cell(
        part=part.label,
        row=row.label,
        column=column.label,
        read=tuple(_at_scale(_renamed(text, domains), scale) for text in row.read or declaration.read),
        paper=_printed(row.paper, index, declaration),
        paper_std=_printed(row.paper_std, index, declaration),
        runs=runs,
        data=used,
        declared=whole.data.name,
    )


def _printed(groups: Sequence[Sequence[float]], index: int, declaration: Declaration) -> tuple[float | None, ...]:
    """What the paper prints for each metric of a column; None if it prints nothing."""
    return tuple(groups[index]) if groups and groups[index] else (None,) * len(declaration.metrics)


def declared_run(part: Part, row: Row, column: Column) -> Experiment:
    """The run of a cell at the paper's size: the part's settings, then the row's, then the column's.

    Method options that a column or part sets apply to rows whose method has them; a row's own options must be valid.
    """
    values = config.with_settings({}, [*part.settings, *row.settings, *column.settings])
    planned = values.get("federation", {}).get("duties")
    if planned is not None:
        values["federation"] = {**values["federation"], "duties": str(EXPERIMENTS / planned)}
    method = named(values["method"]["name"], PGD())
    unknown = values["method"].keys() - MethodConfig.model_fields.keys()
    kept = {"name", *options(method), *row.method, *unknown}  # unknown options stay in, so that the config rejects them
    return config.make({**values, "method": {key: v for key, v in values["method"].items() if key in kept}})


def running_data(declared: str, wanted: str | None) -> str:
    """The data to use for the declared data: as requested, if possible; else the data themselves or their default."""
    if wanted is not None and (wanted == declared or (declared, wanted) in STAND_INS):
        return wanted
    usual = USUAL_STAND_IN.get(declared)
    return declared if usual is None or is_here(declared) else usual


def is_here(data: str) -> bool:
    """Whether the files of a data set are prepared, or none are needed."""
    if not AVAILABLE[data].needs_files:
        return True
    root = os.environ.get("FEDRBN_DATA")
    return bool(root) and (Path(root or "").expanduser() / data.replace("-", "_")).is_dir()


def check_data(chosen: Iterable[Cell]) -> None:
    """Raise an error, before anything runs, if data are not prepared here."""
    for name in sorted({cell.data for cell in chosen if cell.runs}):
        if not is_here(name):
            embedded = " Or add --data digits-mini to run on the embedded digits; tables say so." * (name == "digits")
            raise ConfigError(
                f"got an experiment on {name}, which is not prepared here; expected its files in the folder that "
                f"FEDRBN_DATA names. fedrbn data prepare --where says where to get them.{embedded}"
            )


def _on_stand_in(experiment: Experiment, data: str, domains: Mapping[str, str]) -> Experiment | None:
    """The same setting on other data; None if it names a domain without a replacement."""
    at: Any = experiment.federation.at
    if isinstance(at, tuple):
        if any(_placed(name, domains) is None for name in at):
            return None
        at = tuple(_placed(name, domains) for name in at)
    changes: dict[str, Any] = {"at": at}
    if (planned := experiment.federation.duties) is not None:
        clients = {_placed(name, domains) or name: own for name, own in planned.clients.items()}
        changes["duties"] = planned.model_copy(update={"clients": clients}).model_dump()
    return with_changes(experiment, {"data": {"name": data}, "federation": changes})


def _placed(name: str, domains: Mapping[str, str]) -> str | None:
    """The replacement of a domain, or of a user in a domain; None if there is none."""
    domain, dash, number = name.rpartition("-")
    if name in domains or not dash:
        return domains.get(name)
    return f"{domains[domain]}-{number}" if domain in domains else None


def _renamed(text: str, domains: Mapping[str, str]) -> str:
    """What to read, with the names of the domains that are used."""
    metric, slash, domain = text.partition("/")
    if slash:
        return f"{metric}/{domains.get(domain, domain)}"
    return " ".join(domains.get(word, word) for word in text.split(" "))


def _at_scale(text: str, scale: Scale) -> str:
    """What to read, with the attack at this scale."""
    return f"ra[{scale.attacks.get(text[3:-1], text[3:-1])}]" if text.startswith("ra[") else text
