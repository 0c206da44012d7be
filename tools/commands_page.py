"""Generate docs/commands.md from the command line itself.

python tools/commands_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.main import get_command

from fedrbn.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


def markdown() -> str:
    """Every command: what it does, its arguments and options."""
    root: Any = get_command(app)
    parts = [
        "# Commands\n\nMade from the command line by `python tools/commands_page.py`. `fedrbn COMMAND --help` prints "
        "the same. Exit codes: 0 is success, 1 a result that you asked to be warned about, 2 an error that the message "
        "explains.\n"
    ]
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found = {f"{name} {sub}": one for sub, one in inner.items()} if inner else {name: command}
        parts += [_section(title, one) for title, one in found.items()]
    return "\n".join(parts)


def _section(title: str, command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    table = ["| argument or option | default | meaning |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"## fedrbn {title}\n", " ".join((command.help or "").split()), "", *table, ""])


def _row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = parameter.human_readable_name.upper() if is_argument else ", ".join(parameter.opts)
    default = parameter.default
    shown = "required" if parameter.required else "" if default in (None, "", False) else f"`{default}`"
    meaning = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    choices = getattr(parameter.type, "choices", None)
    if choices:
        meaning = f"{meaning} One of {', '.join(str(choice) for choice in choices)}."
    return f"| `{names}` | {shown} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
