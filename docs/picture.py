"""Takes docs/report.png, the README's picture, of the page that ``make demo`` wrote."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

_VIEW = {"width": 1160, "height": 620}


def main() -> None:
    """Opens the page named on the command line and writes the picture beside this file."""
    page = Path(sys.argv[1]).resolve()
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        view = browser.new_page(viewport=_VIEW)
        view.goto(page.as_uri())
        view.get_by_role("heading", name="What the attack saw").last.scroll_into_view_if_needed()
        view.evaluate("scrollTo(0, 0)")
        view.screenshot(path=Path(__file__).parent / "report.png")
        browser.close()


if __name__ == "__main__":
    main()
