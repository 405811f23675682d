from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.writer import LedgerWriter

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,1000",
)  # fmt: skip
CHARTS = {"": 2, "fleet": 1, "preemptions": 7, "cost": 3, "learning": 6, "bill": 1}
WAIT_S = 60

pytestmark = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason=f"needs {CHROMIUM} and {DRIVER}: apt-get install chromium chromium-driver",
)


def wait_for(what: str, found: Callable[[], Any]) -> Any:
    """The first true value of `found`, however long it takes within reason."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if value := found():
                return value
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"waited {WAIT_S} s for {what}")


@pytest.fixture
def serve(gone: Any, tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """Start `rose dashboard` on a ledger; when the test is over, nothing of it may be left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(ledger: Path) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        rose = Path(sys.executable).with_name("rose")
        command = [str(rose), "dashboard", "--ledger", str(ledger), "--port", str(port)]
        with (tmp_path / "server.log").open("wb") as log:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            )
        url = f"http://127.0.0.1:{port}"
        wait_for("the server", lambda: urllib.request.urlopen(f"{url}/_stcore/health", timeout=2).status == 200)
        return url

    yield start
    for server in started:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(20)
        assert gone(server.pid) == []


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    """Chromium far from UTC, so that a time shown in the browser's zone is seen to be wrong."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    service = Service(str(DRIVER), env={**os.environ, "TZ": "America/New_York"})
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def drawn(browser: Any) -> int:
    """How many charts have been drawn: a canvas or SVG with a size."""
    return int(
        browser.execute_script(
            "return [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].filter(chart => "
            "{ const mark = chart.querySelector('canvas, svg'); return mark && mark.clientHeight > 60; }).length"
        )
    )


def text(browser: Any) -> str:
    return str(browser.execute_script("return document.body.innerText"))


def test_every_page_draws_its_charts_and_shows_no_error(serve: Any, browser: Any, ended: Path) -> None:
    url = serve(ended)
    # A page's own address must work on a server that has shown nothing yet.
    for page, charts in reversed(CHARTS.items()):
        browser.get(f"{url}/{page}")
        wait_for(f"{charts} charts on {page or 'overview'}", lambda charts=charts: drawn(browser) == charts)
        assert "SIMULATED" in text(browser)
        assert "Traceback" not in text(browser)
        assert browser.find_elements("css selector", "[data-testid=stMain] [data-testid=stSelectbox]")
        assert len(browser.find_elements("css selector", "h1")) == 1
    # Streamlit itself probes for its base address below each page, and is told 404.
    log = [entry for entry in browser.get_log("browser") if "/_stcore/" not in entry["message"]]
    severe = [entry for entry in log if entry["level"] == "SEVERE"]
    assert severe == []


def test_a_live_page_follows_the_run_in_place_and_stops_when_it_ends(
    serve: Any, browser: Any, tmp_path: Path, kit: Any
) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "live", "run", "live", flush_interval_s=0.05) as ledger:

        def record(made: list[events.Event]) -> None:
            for event in made:
                ledger.record(event, durable=False)
            ledger.flush()

        record([kit.started(), *kit.joined(), *kit.a_step(0)])
        browser.get(f"{serve(root)}/fleet")
        wait_for("the first step", lambda: "90.000 s" in text(browser) and drawn(browser) == 1)
        # A mark that a reload of the page or a new chart would lose.
        browser.execute_script("document.querySelector('[data-testid=stVegaLiteChart]').dataset.mark = 'same'")
        record(kit.a_step(1))
        wait_for("the second step", lambda: "180.000 s" in text(browser))
        marked = "return document.querySelector('[data-testid=stVegaLiteChart]').dataset.mark"
        assert browser.execute_script(marked) == "same"
        record([*kit.left(60), events.Run(action="ended", name="little fleet", at_us=kit.us(60))])
        wait_for("the end", lambda: "going on" not in text(browser) and "ended" in text(browser))
        assert drawn(browser) == 1
