"""The commands about hardware: probe this machine, plan a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedrbn.cli.output import console, echo, print_json, say

if TYPE_CHECKING:
    from fedrbn.fleet import Check
    from fedrbn.planner import FleetPlan


def probe(
    config_file: Annotated[
        Path | None, typer.Argument(help="A TOML file of settings or a fleet, for its network; default: the digits'.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 5.0,
    url: Annotated[str | None, typer.Option(help="Also measure the download from this http(s) address.")] = None,
    classes: Annotated[int, typer.Option(help="Classes of the network.")] = 10,
    image_size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 28,
    as_json: Annotated[bool, typer.Option("--json", help='Print JSON, for `probe = "file.json"` of a fleet.')] = False,
) -> None:
    """Measure what this machine can do: forward, backward and attack speed, memory, bandwidth."""
    from dataclasses import asdict

    from fedrbn import config
    from fedrbn import probe as probing

    values = config.read(config_file) if config_file else {}
    experiment = config.make({key: part for key, part in values.items() if key in config.Experiment.model_fields})
    side = experiment.data.image_size or image_size
    shape = (3, side, side)
    net = probing.network(experiment, classes, shape)
    found = probing.probe(net, shape, experiment.train.batch_size, seconds, url)
    if as_json:
        print_json(asdict(found))
        return
    speed, giga = found.speed, 1e9
    echo(f"network           {experiment.model.name}, width {experiment.model.width:g}, {side}x{side} pixels")
    echo(f"forward           {speed.forward / giga:.2f} GMAC/s")
    echo(f"backward          {speed.backward / giga:.2f} GMAC/s")
    echo(f"attack step       {speed.attack / giga:.2f} GMAC/s")
    echo(f"free memory       {'unknown' if found.memory is None else f'{found.memory / giga:.1f} GB'}")
    echo(f"memory bandwidth  {found.memory_bandwidth / giga:.1f} GB/s")
    echo(f"download          {'not measured' if found.bandwidth is None else f'{found.bandwidth / 1e6:.1f} MB/s'}")


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
    from fedrbn import fleet, planner
    from fedrbn import probe as probing

    found = fleet.read(fleet_file)
    workload = probing.workload(found.experiment, found.classes, found.image_shape)
    devices, checks = found.devices, []
    if measured is not None:
        checks = fleet.check(devices, workload, fleet.measured_seconds(measured))
        devices = fleet.corrected(devices, checks)
    chosen = planner.plan(devices, workload, deadline or found.deadline)
    if as_json:
        print_json(as_values(chosen, checks))
    else:
        show_plan(chosen, checks, fleet.settings(chosen))
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
