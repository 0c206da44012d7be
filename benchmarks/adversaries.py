"""SA and RA of honest users under attacks and defences, or under noise for privacy: rows × columns of a TOML file.

    python benchmarks/adversaries.py benchmarks/byzantine.toml results/byzantine

Every cell continues the same state, trained honestly for `honest_rounds` (0 starts from scratch), with the settings of
its row and column up to its part's `rounds`. Accuracy is of the last round and over users that do not attack.
Finished cells are kept in the store and not repeated.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from fedrbn import config
from fedrbn.config import Experiment
from fedrbn.errors import FederationError
from fedrbn.evaluation.protocol import EvaluationSettings, evaluate_clients
from fedrbn.federated.assemble import Assembly, assemble
from fedrbn.federated.executors.malice import attackers
from fedrbn.federated.protocol import ServerState
from fedrbn.federated.server import federate, initial_state
from fedrbn.runs.checkpoint import Best
from fedrbn.runs.directory import RunDirectory

CELL = ("train", "method", "privacy", "malice")
"""Sections that a row or column can set."""


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    part: str
    row: str
    column: str
    experiment: Experiment


def cells(declared: Mapping[str, Any], seed: int) -> list[Cell]:
    """Every row with every column of each part."""
    return [
        Cell(part["title"], row["label"], column["label"], experiment(declared, seed, part["rounds"], row, column))
        for part in declared["parts"]
        for row in part["rows"]
        for column in part["columns"]
    ]


def experiment(declared: Mapping[str, Any], seed: int, rounds: int, *parts: Mapping[str, Any]) -> Experiment:
    """The declared settings with those of a row and a column on top."""
    changes = [(s, key, value) for part in parts for s in CELL for key, value in part.get(s, {}).items()]
    last = [("train", "rounds", rounds), ("run", "seed", seed), ("run", "workers", 1)]
    return config.make(config.with_settings(declared["settings"], [*changes, *last]))


def honest_state(declared: Mapping[str, Any], seed: int, store: Path) -> ServerState | None:
    """The state that every cell continues, from the store if it is there; None starts from scratch."""
    rounds = declared["honest_rounds"]
    if not rounds:
        return None
    assembly = assemble(experiment(declared, seed, rounds))
    path = store / f"honest-{assembly.experiment.key()}"
    directory = RunDirectory.open(path) if path.exists() else RunDirectory.create(path, assembly.experiment)
    checkpoint = directory.checkpoint("last")
    state = checkpoint.state if checkpoint else initial_state(assembly.net, assembly.plan)
    with assembly.executor() as execute:
        for reached, _ in federate(state, assembly.plan, execute):
            state = reached
            directory.save("last", state, Best(state.round, 0.0))
    return state


def measure(cell: Cell, start: ServerState | None, store: Path) -> dict[str, Any]:
    """The cell's numbers, from the store if they are there."""
    assembly = assemble(cell.experiment)
    path = store / f"{assembly.experiment.key()}-from-{start.round if start else 0}.json"
    if not path.exists():
        path.write_text(json.dumps(result(assembly, start), indent=1) + "\n")
    found: dict[str, Any] = json.loads(path.read_text())
    return {"part": cell.part, "row": cell.row, "column": cell.column, **found}


def result(assembly: Assembly, start: ServerState | None) -> dict[str, Any]:
    """Continue training from the state and evaluate every user."""
    state = start or initial_state(assembly.net, assembly.plan)
    refused = 0
    with assembly.executor() as execute:
        try:
            for reached, report in federate(state, assembly.plan, execute):
                state = reached
                refused += len(report.failures)
        except FederationError as error:  # honest clients could not train with the manipulated weights
            print(f"stopped after round {state.round}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        record, _ = evaluate_clients(assembly, state, execute, EvaluationSettings(adaptive=False))
    malicious = attackers(assembly.experiment, assembly.plan.members)
    honest = [user for name, user in record["users"].items() if name not in malicious]
    return {
        "key": assembly.experiment.key(),
        "last_round": state.round,
        "sa": fmean(user["sa"] for user in honest),
        "ra": fmean(user["ra"] for user in honest),
        "worst_sa": min(user["sa"] for user in honest),
        "honest": len(honest),
        "attackers": sorted(malicious),
        "uploads_refused_at_the_boundary": refused,
        "attack": record["attack"],
        "eps": record["eps"],
        "versions": record["versions"],
        **({"privacy": record["privacy"]} if "privacy" in record else {}),
    }


def markdown(declared: Mapping[str, Any], rows: list[dict[str, Any]], command: str, seed: int) -> str:
    """One table for each part; a cell is SA / RA / SA of the worst user."""
    lines = [
        f"# {declared['title']}",
        "",
        f"`{command}`, seed {seed}, {rows[0]['attack']} at ε = {rows[0]['eps'] * 255:g}/255. A cell is SA / RA of the "
        "users that do not attack, in %, then in brackets the SA of the worst-off of them. "
        f"{declared['honest_rounds']} honest rounds, then as many as each table says with the settings of the cell; "
        "accuracy after the last round. †: the run stopped before, because most honest clients' training diverged; "
        "accuracy of the last round that was finished.",
        "",
        f"Scale: {scale(declared)}.",
        "",
        declared["note"],
    ]
    for part in declared["parts"]:
        columns = [column["label"] for column in part["columns"]]
        own = [row for row in rows if row["part"] == part["title"]]
        private = any("privacy" in row for row in own)
        extra = ["ε at δ = 1e-5"] if private else []
        lines += [
            "",
            f"## {part['title']} (up to round {part['rounds']})",
            "",
            "| | " + " | ".join([*columns, *extra]) + " |",
        ]
        lines.append("|---|" + "---|" * (len(columns) + len(extra)))
        for declared_row in part["rows"]:
            label = declared_row["label"]
            found = [next(r for r in own if (r["row"], r["column"]) == (label, column)) for column in columns]
            shown = [accuracies(r, part["rounds"]) for r in found]
            if private:
                shown.append(f"{found[0]['privacy']['epsilon']:.3g}" if "privacy" in found[0] else "∞")
            lines.append(f"| {label} | " + " | ".join(shown) + " |")
    return "\n".join(lines) + "\n"


def scale(declared: Mapping[str, Any]) -> str:
    """The declared settings in one line."""
    pairs = [(f"{s}.{key}", value) for s, values in declared["settings"].items() for key, value in values.items()]
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in pairs)


def accuracies(cell: Mapping[str, Any], rounds: int) -> str:
    """SA / RA (SA of the worst user), in %."""
    numbers = f"{100 * cell['sa']:.1f} / {100 * cell['ra']:.1f} ({100 * cell['worst_sa']:.0f})"
    return numbers if cell["last_round"] == rounds else f"{numbers} †"


def main() -> None:
    """Measure every cell that is missing and write table and numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("declaration", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=Path, default=Path("runs/adversaries"))
    given = parser.parse_args()
    declared = tomllib.loads(given.declaration.read_text(encoding="utf-8"))
    given.store.mkdir(parents=True, exist_ok=True)
    start = honest_state(declared, given.seed, given.store)
    todo = cells(declared, given.seed)
    rows = []
    for number, cell in enumerate(todo, start=1):
        rows.append(measure(cell, start, given.store))
        told = f"{number}/{len(todo)} {cell.row} | {cell.column}: SA {rows[-1]['sa']:.3f} RA {rows[-1]['ra']:.3f}"
        print(told, file=sys.stderr, flush=True)
    command = f"python benchmarks/adversaries.py {shlex.quote(str(given.declaration))} {given.out} --seed {given.seed}"
    given.out.mkdir(parents=True, exist_ok=True)
    content = {"command": command, "seed": given.seed, "declared": declared, "cells": rows}
    (given.out / "results.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (given.out / "README.md").write_text(markdown(declared, rows, command, given.seed))


if __name__ == "__main__":
    main()
