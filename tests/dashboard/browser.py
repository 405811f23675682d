"""The served dashboard, and Chromium on it, for what only a browser can show."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.runtime.engines.ports import free_port

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
MISSING = f"needs {CHROMIUM} and {DRIVER}: apt-get install chromium chromium-driver"
WAIT_S = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True, slots=True)
class Screen:
    width: int = 1400
    height: int = 1000
    dark: bool = False


def is_there() -> bool:
    return CHROMIUM.exists() and DRIVER.exists()


@contextmanager
def served(
    ledger: Path, folder: Path, port: int | None = None, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address and process of `rose dashboard`. Its output is in `folder`/server.log."""
    port = port or free_port()
    command = [sys.executable, "-m", "rose.cli", "dashboard", "--ledger", str(ledger), "--port", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for("the server", lambda: urllib.request.urlopen(f"{url}/_stcore/health", timeout=2).status == 200)
        yield url, server
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(20)


@contextmanager
def chromium(screen: Screen) -> Iterator[Any]:
    """Yield a selenium driver in a zone far from UTC, so that a time shown in the browser's zone looks wrong."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(CHROMIUM)
        size = f"--window-size={screen.width},{screen.height}"
        for flag in (*_FLAGS, size, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = Service(str(DRIVER), env={**os.environ, "TZ": "America/New_York"})
        driver = webdriver.Chrome(options=options, service=service)
        try:
            resize(driver, screen)
            yield driver
        finally:
            driver.quit()


def resize(driver: Any, screen: Screen) -> None:
    size = {"width": screen.width, "height": screen.height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    theme = {"name": "prefers-color-scheme", "value": "dark" if screen.dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})


def pages(driver: Any, url: str) -> dict[str, str]:
    driver.get(url)
    return dict(wait_for("the menu", lambda: driver.execute_script(_LINKS)))


def settled(driver: Any) -> bool:
    return bool(driver.execute_script(_SETTLED))


def height(driver: Any) -> int:
    return int(driver.execute_script(_HEIGHT))


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if value := look():
                return value
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited {WAIT_S:.0f} s for {what}")


_LINKS = """return [...document.querySelectorAll('[data-testid=stSidebarNavLink]')].map(
    link => [link.textContent.trim(), link.href])"""
_SETTLED = """
const app = document.querySelector('[data-testid=stApp]');
if (!app || app.dataset.testScriptState !== 'notRunning') return false;
if (document.querySelector('[data-testid=stSkeleton]')) return false;
if (!document.querySelector('[data-testid=stMain] h1')) return false;
return [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(chart => {
    const mark = chart.querySelector('canvas, svg');
    return !chart.offsetParent || (mark && mark.clientHeight > 20);
});"""
_HEIGHT = """
const main = document.querySelector('[data-testid=stMain]');
return Math.max(main.scrollHeight, ...[...main.children].map(child => child.scrollHeight));"""
