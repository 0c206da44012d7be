"""fedrbn plan: a duty for every device of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrbn.cli.output import console, echo, print_json, say

if TYPE_CHECKING:
    from fedrbn.fleet.description import TimingCheck
    from fedrbn.fleet.planner import FleetPlan


def plan(
    fleet_file: Annotated[Path, typer.Argument(help="A TOML file with a deadline, devices and an experiment.")] = Path(
        "fleet.toml"
    ),
    example: Annotated[bool, typer.Option("--example", help="Write an example of such a file and exit.")] = False,
    deadline: Annotated[float | None, typer.Option(help="Seconds per round, instead of the file's.")] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            help="A run directory: compare the predicted with the measured times of its clients, and plan again."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the duties for fedrbn run --set federation.duties=FILE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """For every device, choose a duty that fits the deadline: AT, AT on a part of the batches, PNC or ST.

    Exit code 1 if a device cannot take part or no device can train adversarially; with --out it is an error (2).
    """
    from fedrbn.errors import FleetError
    from fedrbn.fleet import description
    from fedrbn.runs.plan_fleet import plan_fleet

    if example:
        description.write_example(fleet_file)
        say(f"wrote {fleet_file}; edit it to describe your devices, then run: fedrbn plan {fleet_file}")
        return
    if not fleet_file.exists():
        raise FleetError(
            f"got {fleet_file}, which does not exist; expected a fleet file. fedrbn plan --example writes one to start "
            "from."
        )
    chosen, checks = plan_fleet(fleet_file, deadline=deadline, measured=measured)
    if as_json:
        print_json(as_values(chosen, checks))
    else:
        show_plan(chosen, checks)
    if out is not None:
        from fedrbn.files import write_atomically

        write_atomically(out, description.to_toml(description.duties_of(chosen)).encode())
        say(f"train this plan with: fedrbn run CONFIG --set federation.duties={out}", quiet=as_json)
    if not chosen.feasible:
        raise typer.Exit(1)


def as_values(chosen: FleetPlan, checks: list[TimingCheck]) -> dict[str, Any]:
    """The plan as JSON values."""
    return {
        "deadline": chosen.deadline,
        "feasible": chosen.feasible,
        "devices": {a.device: a.to_json() for a in chosen.assignments},
        "coverage": chosen.coverage,
        "problems": list(chosen.problems),
        "checks": {
            c.device: {"duty": str(c.duty), "predicted": c.predicted, "measured": c.measured, "ratio": c.ratio}
            for c in checks
        },
    }


def show_plan(chosen: FleetPlan, checks: list[TimingCheck]) -> None:
    """The plan as tables, with its problems."""
    from rich.table import Table

    page = console()
    if checks:
        table = Table(title="Predicted and measured computing time of a round")
        for column in ("device", "duty", "predicted", "measured", "measured / predicted"):
            table.add_column(column, justify="left" if column in ("device", "duty") else "right")
        for c in checks:
            table.add_row(c.device, str(c.duty), f"{c.predicted:.3g} s", f"{c.measured:.3g} s", f"{c.ratio:.2f}")
        page.print(table)
    table = chosen.table()
    if checks:
        table.title = f"{table.title} (corrected)"
    page.print(table)
    for note in chosen.notes:
        echo(note)
