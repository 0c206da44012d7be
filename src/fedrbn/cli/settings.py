"""fedrbn settings: every setting, its default and its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from fedrbn.builtin import BuiltIn
from fedrbn.builtin.aggregation import RULES
from fedrbn.builtin.attacks import CORRUPTIONS, ON_LOGITS, ON_LOSS
from fedrbn.builtin.data_sets import AVAILABLE
from fedrbn.builtin.methods import METHODS
from fedrbn.builtin.networks import NETWORKS
from fedrbn.cli.output import console, echo


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown page instead of a table.")] = False,
) -> None:
    """List every setting with its default and meaning; use them in a TOML file or with --set section.key=value."""
    from rich.table import Table

    if markdown:
        echo(markdown_page(), nl=False)
        return
    table = Table()
    for column in ("setting", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for section, key, default, meaning in rows():
        table.add_row(f"{section}.{key}", default, meaning)
    console().print(table)
    for name, chosen in _data_defaults().items():
        echo(f"with {name}: {', '.join(chosen)}")


def _data_defaults() -> dict[str, list[str]]:
    """What a data set, or a kind of data, uses instead of the defaults, as `section.key = value`."""
    from fedrbn.config import DATA_DEFAULTS

    return {
        name: [f"{section}.{key} = {value}" for section, values in sections.items() for key, value in values.items()]
        for name, sections in DATA_DEFAULTS.items()
    }


def rows() -> list[tuple[str, str, str, str]]:
    """Every setting as (section, key, default, meaning), with the defaults of methods and rules that have their own."""
    from fedrbn.config import reference
    from fedrbn.federated.defaults import own_defaults

    own = own_defaults()
    return [
        (section, key, own.get((section, key), default) if default == "not set" else default, meaning)
        for section, key, default, meaning in reference()
    ]


def markdown_page() -> str:
    """The page docs/configuration.md."""
    from fedrbn.config import Experiment

    lines = [
        "# Settings",
        "",
        "Written by `fedrbn settings --markdown`. Settings come from a TOML file, from `--set section.key=value`, or",
        "both; what is left out has the default below, which is the paper's where the paper states one. Options of",
        "methods and rules have their own defaults; where these differ, each is listed with those that have it. `not",
        "set`: the meaning says what happens then. A run directory's `config.toml` holds the resolved settings of that",
        "run.",
        "",
    ]
    every = rows()
    for section, field in Experiment.model_fields.items():
        about = (field.annotation.__doc__ or "").strip().split("\n")[0]
        lines += [f"## [{section}]", "", about, "", "| key | default | meaning |", "|---|---|---|"]
        own = [row for row in every if row[0] == section]
        lines += [
            f"| `{key}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |" for _, key, default, meaning in own
        ]
        lines.append("")
    lines += ["## Defaults of a data set", "", "Used instead of the above when that data set is chosen:", ""]
    for name, chosen in _data_defaults().items():
        lines.append(f"- `{name}`: {', '.join(f'`{each}`' for each in chosen)}")
    for title, table in _named().items():
        lines += ["", f"## {title}", ""]
        lines += [f"- `{name}`: {entry.summary}" for name, entry in table.items()]
    return "\n".join(lines) + "\n"


def _named() -> dict[str, Mapping[str, BuiltIn]]:
    """What settings can name, under the title of its list."""
    return {
        "Methods (method.name)": METHODS,
        "Aggregation rules (train.aggregation)": RULES,
        "Networks (model.name)": NETWORKS,
        "Data sets (data.name)": AVAILABLE,
        "Attacks to train with (attack.name) and to evaluate with": ON_LOSS,
        "Attacks to evaluate with only": {**ON_LOGITS, **CORRUPTIONS},
    }
