"""A page as PDF, printed by a Chromium that is on PATH: ROSE brings none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from rose.pricing.money import PricingError

#: Names that Chromium and what is built on it have on PATH.
NAMES: tuple[str, ...] = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
_TIMEOUT_S = 120


def browser() -> str:
    """The first of NAMES on PATH. Raises PricingError if there is none."""
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    raise PricingError(
        f"--pdf needs a Chromium, and none of {', '.join(NAMES)} is on PATH: install one, or leave --pdf out and print "
        "the HTML page from a browser"
    )


def print_pdf(html: str, path: Path) -> None:
    """Print a page to `path`. Raises PricingError without a Chromium, and if it fails."""
    program = browser()
    with tempfile.TemporaryDirectory(prefix="rose-pdf-") as folder:
        page, made = Path(folder) / "page.html", Path(folder) / "page.pdf"
        page.write_text(html, encoding="utf-8")
        command = [
            program,
            "--headless",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
            page.as_uri(),
        ]
        if os.geteuid() == 0:
            # Chromium's sandbox refuses root. The page is our own and has no script.
            command.insert(1, "--no-sandbox")
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            message = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        except subprocess.TimeoutExpired:
            message = [f"it was not done after {_TIMEOUT_S} s"]
        except OSError as error:
            message = [error.strerror or str(error)]
        if not made.exists():
            raise PricingError(f"{program} made no PDF: {message[0]}; print the HTML page from a browser instead")
        shutil.copyfile(made, path)
