"""Take a picture of the top of a report page: docs/figures/report.png, which the README shows.

fedrbn demo && python tools/report_picture.py runs/demo/report.html
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

OUT = Path(__file__).parents[1] / "docs" / "figures" / "report.png"
WIDTH, HEIGHT = 1100, 870


def main(report: Path) -> None:
    """Open the page in chromium and write the picture."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("svg")
        page.screenshot(path=str(OUT))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
