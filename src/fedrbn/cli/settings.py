"""fedrbn settings: every setting, its default and its meaning."""

from __future__ import annotations

from typing import Annotated

import typer

from fedrbn.cli.output import console, echo


def settings(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown page instead of a table.")] = False,
) -> None:
    """List every setting with its default and meaning; use them in a TOML file or with --set section.key=value."""
    from rich.table import Table

    from fedrbn.config import reference

    if markdown:
        echo(markdown_page(), nl=False)
        return
    table = Table()
    for column in ("setting", "default", "meaning"):
        table.add_column(column, overflow="fold")
    for section, key, default, meaning in reference():
        table.add_row(f"{section}.{key}", default, meaning)
    console().print(table)


def markdown_page() -> str:
    """The page docs/configuration.md."""
    from fedrbn.config import DATA_DEFAULTS, Experiment, reference

    lines = [
        "# Settings",
        "",
        "Written by `fedrbn settings --markdown`. Settings come from a TOML file, from `--set section.key=value`, or",
        "both; what is left out has the default below, which is the paper's where the paper states one. “–” means: the",
        "data set's or the method's own. A run directory's `config.toml` holds the resolved settings of that run.",
        "",
    ]
    for section, field in Experiment.model_fields.items():
        about = (field.annotation.__doc__ or "").strip().split("\n")[0]
        lines += [f"## [{section}]", "", about, "", "| key | default | meaning |", "|---|---|---|"]
        rows = [row for row in reference() if row[0] == section]
        lines += [
            f"| `{key}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |" for _, key, default, meaning in rows
        ]
        lines.append("")
    lines += ["## Defaults of a data set", "", "Used instead of the above when that data set is chosen:", ""]
    for name, sections in DATA_DEFAULTS.items():
        content = ", ".join(
            f"`{section}.{key} = {value}`" for section, values in sections.items() for key, value in values.items()
        )
        lines.append(f"- `{name}`: {content}")
    return "\n".join(lines) + "\n"
