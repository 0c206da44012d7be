"""fedrbn plan: a duty for every device of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrbn.cli.output import console, echo, print_json, say

if TYPE_CHECKING:
    from fedrbn.fleet.description import Check
    from fedrbn.fleet.planner import FleetPlan


def plan(
    fleet_file: Annotated[Path, typer.Argument(help="A TOML file with a deadline, devices and an experiment.")],
    deadline: Annotated[float | None, typer.Option(help="Seconds per round, instead of the file's.")] = None,
    measured: Annotated[
        Path | None, typer.Option(help="A run: compare predicted with measured times of its clients, and plan again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Who can afford what: AT, AT on a part of the batches, PNC or ST, for every device within the deadline.

    Exit code 1 if a device cannot take part or nobody can train adversarially.
    """
    from fedrbn.fleet import description, planner
    from fedrbn.fleet import probe as probing

    found = description.read(fleet_file)
    workload = probing.workload(found.experiment, found.classes, found.image_shape)
    devices, checks = found.devices, []
    if measured is not None:
        checks = description.check(devices, workload, description.measured_seconds(measured))
        devices = description.corrected(devices, checks)
    chosen = planner.plan(devices, workload, deadline or found.deadline)
    if as_json:
        print_json(as_values(chosen, checks))
    else:
        show_plan(chosen, checks, description.settings(chosen))
    if not chosen.feasible:
        raise typer.Exit(1)


def as_values(chosen: FleetPlan, checks: list[Check]) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "deadline": chosen.deadline,
        "feasible": chosen.feasible,
        "devices": {
            a.device: {
                "domain": a.domain,
                "duty": a.duty.value,
                "at_share": a.at_share,
                "lam": a.lam,
                "seconds": a.seconds,
                "bytes": a.traffic_bytes,
                "memory": a.memory_bytes,
            }
            for a in chosen.assignments
        },
        "coverage": chosen.coverage,
        "problems": list(chosen.problems),
        "checks": {
            c.device: {"duty": c.duty.value, "predicted": c.predicted, "measured": c.measured, "ratio": c.ratio}
            for c in checks
        },
    }


def show_plan(chosen: FleetPlan, checks: list[Check], options: list[str]) -> None:
    """The plan as tables, with what stands in the way and how to run it."""
    from rich.table import Table

    page = console()
    if checks:
        table = Table(title="Predicted and measured computing time of a round")
        for column in ("device", "duty", "predicted", "measured", "measured / predicted"):
            table.add_column(column, justify="left" if column in ("device", "duty") else "right")
        for c in checks:
            table.add_row(c.device, c.duty.value, f"{c.predicted:.3g} s", f"{c.measured:.3g} s", f"{c.ratio:.2f}")
        page.print(table)
    table = Table(title=f"Plan for a deadline of {chosen.deadline:g} s per round" + " (corrected)" * bool(checks))
    for column in ("device", "domain", "duty", "adversarial batches", "time", "of it transfer", "traffic", "memory"):
        table.add_column(column, justify="left" if column in ("device", "domain", "duty") else "right")
    for a in chosen.assignments:
        duty = f"{a.duty.value}, λ = {a.lam:g}" if a.lam is not None else a.duty.value
        megabytes = (f"{count / 1e6:.1f} MB" for count in (a.traffic_bytes, a.memory_bytes))
        times = (f"{a.seconds:.3g} s", f"{a.transfer_seconds:.3g} s")
        table.add_row(a.device, a.domain, duty, f"{a.at_share:.0%}", *times, *megabytes)
    page.print(table)
    shares = ", ".join(f"{domain} {share:.0%}" for domain, share in chosen.coverage.items())
    echo(f"adversarially trained images per domain: {shares}")
    for problem in chosen.problems:
        echo(f"note: {problem}")
    if options:
        say(f"AT users for fedrbn run: {options[0]} '{options[1]}'")
