"""`python -m benchmarks.dashboard.screenshots`: a picture of every page."""

import argparse
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from rose.accept.report import ROOT, phase
from tests.dashboard import browser
from tests.dashboard.browser import Screen

HEIGHT_MAX_PX = 3600  #: Taller pages are cut off there; the rest is tables.
FIRST, FIRST_PX = "Overview", 1100  #: The page whose top the README shows.
SCREEN = Screen(1280, 1000)
_QUALITY = 82


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, default=ROOT / "sample_traces" / "ledger")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images")
    given = parser.parse_args()
    if not browser.is_there():
        sys.exit(browser.MISSING)
    given.to.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        browser.served(given.ledger.resolve(), Path(folder)) as (url, _),
        browser.chromium(SCREEN) as driver,
    ):
        for title, address in browser.pages(driver, url).items():
            with phase(title):
                file = given.to / f"{title.lower().replace(' ', '-')}-light.webp"
                take(driver, address, SCREEN, file)
            if title == FIRST:
                with Image.open(file) as whole:
                    top = whole.crop((0, 0, whole.width, FIRST_PX))
                top.save(file.with_stem(f"{file.stem}-top"), quality=_QUALITY, method=6)


def take(driver: Any, address: str, screen: Screen, file: Path) -> None:
    browser.resize(driver, screen)
    driver.get(address)
    browser.wait_for(address, lambda: browser.settled(driver))
    tall = Screen(screen.width, min(HEIGHT_MAX_PX, browser.height(driver)), screen.dark)
    browser.resize(driver, tall)
    driver.execute_async_script("setTimeout(arguments[0], 1500)")
    Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").save(file, quality=_QUALITY, method=6)


if __name__ == "__main__":
    main()
