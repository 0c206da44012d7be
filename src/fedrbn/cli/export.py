"""fedrbn export: one client's network as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedrbn.cli.output import console, echo, print_json

if TYPE_CHECKING:
    from fedrbn.models.export import Exported
    from fedrbn.models.onboarding import Newcomer, Score


Folding = Annotated[bool, typer.Option("--fold/--no-fold", help="Fold batch norm into the layers before it.")]


def export(
    directory: Annotated[Path, typer.Argument(help="A directory made by fedrbn run.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file: .safetensors, .onnx or .pt2.")],
    client: Annotated[
        str | None,
        typer.Option(help="The client, for example pen-1; default: a network with the mean batch norm of all clients."),
    ] = None,
    branch: Annotated[
        Literal["auto", "clean", "noised"],
        typer.Option(help="BN_c (clean), BN_a (noised), or the branch that the client predicts with (auto)."),
    ] = "auto",
    fold: Folding = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card and the comparison as JSON.")] = False,
) -> None:
    """Write a client's network as one file, with batch norm folded and normalisation included; verify it first."""
    from fedrbn.models.export import export_client
    from fedrbn.types import Branch

    chosen = None if branch == "auto" else Branch(branch)
    show_export(export_client(directory, client, out, chosen, folding=fold), as_json)


def newcomer_values(newcomer: Newcomer, scores: list[Score], domain: str) -> dict[str, Any]:
    """The result of onboarding as JSON values."""
    return {
        "domain": domain,
        "images": newcomer.images,
        "branch": newcomer.branch.value,
        "donors": newcomer.donors,
        "scores": {score.name: {"branch": score.branch.value, "sa": score.sa, "ra": score.ra} for score in scores},
    }


def show_newcomer(newcomer: Newcomer, scores: list[Score], domain: str) -> None:
    """Where the newcomer's batch norm comes from, and its accuracy next to that of other networks."""
    from rich.table import Table

    from fedrbn.evaluation.tables import BRANCH, percent

    echo(f"BN_c measured on {newcomer.images} images of {domain}")
    for donor, weight in sorted(newcomer.donors.items(), key=lambda item: -item[1])[:3]:
        echo(f"BN_a from {donor} with weight {weight:.3f}")
    if not scores:
        return
    table = Table(title=f"On the test images of {domain}, in %")
    for column in ("network", "predicts with", "SA", "RA"):
        table.add_column(column, justify="right" if column in ("SA", "RA") else "left")
    for score in scores:
        table.add_row(score.name, BRANCH[score.branch.value], percent(score.sa), percent(score.ra))
    console().print(table)


def show_export(exported: Exported, as_json: bool) -> None:
    """The card, how well the logits agree, and size and latency before and after."""
    card = exported.card
    if as_json:
        print_json(
            {
                "path": str(exported.path),
                "card": card.model_dump(mode="json"),
                "deviation": exported.deviation,
                "kept": exported.kept,
                "bytes": [exported.bytes_before, exported.bytes_after],
                "milliseconds": [exported.milliseconds_before, exported.milliseconds_after],
            }
        )
        return
    from fedrbn.evaluation.tables import BRANCH

    accuracy = "not measured" if card.sa is None or card.ra is None else f"SA {card.sa:.1%}, RA {card.ra:.1%}"
    eps = f" under {card.attack['name']} at ε = {card.attack['eps'] * 255:g}/255" if card.attack.get("eps") else ""
    slow, fast = exported.milliseconds_before, exported.milliseconds_after
    echo(f"wrote {exported.path}: {card.method}, client {card.client}, {BRANCH[card.branch]}")
    echo(f"measured before export: {accuracy}{eps * (card.ra is not None)}")
    echo(f"batch norm folded: {card.folded}, kept: {len(exported.kept)}")
    for name, reason in list(exported.kept.items())[:3]:
        echo(f"  kept {name}: {reason}")
    echo(f"logits agree to {exported.deviation:.1e}")
    echo(f"size     {_megabytes(exported.bytes_before)} -> {_megabytes(exported.bytes_after)}")
    echo(f"latency  {slow:.2f} ms -> {fast:.2f} ms (one image, one thread)")


def _megabytes(count: int) -> str:
    """Two decimals, or more for a network of a few kilobytes."""
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e6:.4f} MB"
