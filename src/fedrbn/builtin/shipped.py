"""Settings files that are part of the package. Wherever a settings file is expected, the name is enough."""

from __future__ import annotations

from pathlib import Path

SHIPPED = {path.stem: path for path in sorted(Path(__file__).with_name("settings").glob("*.toml"))}
