"""The documentation site: it builds without a broken link, and works in a browser from disk, without a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install 'fedrbn[dev]'")
    if CHROMIUM is None:
        pytest.skip("no chromium here: `make browser` installs it, or apt-get install chromium")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


def test_the_api_page_shows_signatures(site: Path) -> None:
    api = re.sub(r"<[^>]+>|\s", "", (site / "api.html").read_text(encoding="utf-8"))
    assert "run(experiment:Experiment,path:Path|str,*,network:NetworkSource|None=None," in api
    assert "open_model(path:Path|str," in api  # by the name that users import, not by that of its module


def _failed(request: Any) -> bool:
    """Whether the file could not be read. A request that is still open when the next page loads is aborted instead."""
    return bool(request.failure != "net::ERR_ABORTED")


def test_every_page_opens_without_errors_and_fits_a_phone(site: Path, browser: Any) -> None:
    problems: list[tuple[str, str]] = []
    page = browser.new_context(viewport={"width": 400, "height": 800}).new_page()
    page.on("console", lambda message: problems.append((page.url, message.text)))
    page.on("pageerror", lambda error: problems.append((page.url, str(error))))
    page.on("requestfailed", lambda request: problems.append((page.url, request.url)) if _failed(request) else None)
    page.on("request", lambda asked: problems.append((page.url, asked.url)) if asked.url.startswith("http") else None)
    # only a server shows 404.html
    shown = sorted(path for path in site.glob("*.html") if path.name != "404.html")
    assert len(shown) == len(list((ROOT / "docs").glob("*.md")))
    for path in shown:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path.name} is too wide"
        broken = page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
        assert broken == [], path.name
    assert problems == []


def test_search_works_from_disk(site: Path, browser: Any) -> None:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto((site / "index.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("export_client")
    found = page.locator(".md-search-result__link[href*='api.html?h=export_client#']").first
    found.wait_for(timeout=60_000)
    found.click()
    page.wait_for_url("**/api.html**")
    assert page.locator("h3", has_text="export_client").count() == 1
