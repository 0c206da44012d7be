"""Documents say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedrbn.cli.settings import markdown_page

ROOT = Path(__file__).parents[2]


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == markdown_page(), "write it anew: fedrbn settings --markdown > docs/configuration.md"


def test_every_setting_has_a_meaning() -> None:
    rows = [line for line in markdown_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 30
    assert not [row for row in rows if row.endswith("|  |")]


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing
