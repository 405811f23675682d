"""`python -m benchmarks.dashboard.watch`: a page that is watched for minutes while a fleet writes.

The fleet writes as fast as a real one does, to a ledger that has hours of it already and is compacted and rolled up as
a fleet's own jobs do: what a server needs for the ledger's size then hardly changes, and what grows is what it holds on
to.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.dashboard import browser
from benchmarks.dashboard.browser import Screen
from benchmarks.shared import GROWTH_MAX, arguments, growth, measured
from benchmarks.traffic import Fleet, close_epochs, writers
from rose.accept.report import Report, phase
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up

PAGES = ("Fleet now", "Overview")
#: A million events; so that ten minutes more add 2.5%.
FLEET, QUICK = Fleet(16, 24_000), Fleet(16, 900)
#: A host writes what it has each two seconds.
_WRITE_S, _LOOK_S = 2, 2.0
#: How often small files are merged: `rose jobs serve --compact-every 2m`.
_COMPACT_S = 120


def main() -> None:
    """Watch each page; the exit code is 0 when the watching itself worked."""
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, help="for each page; 10, or half a minute with --quick")
    given = parser.parse_args()
    if not browser.is_there():
        sys.exit(browser.MISSING)
    report = Report("dashboard.watch", given.quick, provenance="simulated")
    minutes = given.minutes or (0.5 if given.quick else 10.0)
    with measured(report, given.json), tempfile.TemporaryDirectory(prefix="dashboard-watch-") as folder:
        for title in PAGES:
            watch(report, title, minutes * 60, Path(folder) / title.replace(" ", "-"))


def watch(report: Report, title: str, seconds: float, folder: Path) -> None:
    """Look at one page of a ledger to which its fleet adds what it does."""
    folder.mkdir()
    ledger, fleet = folder / "ledger", QUICK if report.quick else FLEET
    events = fleet.fill(ledger)
    close_epochs(ledger)
    _upkeep(ledger, grace_s=0)
    ended = threading.Event()
    added: list[int] = []
    with (
        ExitStack() as stack,
        phase(f"watching {title} for {seconds / 60:g} minutes"),
        browser.served(ledger, folder, ROSE_PRICE_BOOK="example") as (url, server),
        browser.chromium(Screen()) as driver,
    ):
        address = browser.pages(driver, url)[title]
        driver.get(address)
        browser.wait_for(title, lambda: browser.settled(driver))
        driver.execute_script(_LOOK)
        driver.execute_cdp_cmd("Performance.enable", {})
        threads = stack.enter_context(ThreadPoolExecutor(2))
        work = [threads.submit(_write, ledger, fleet, ended, added), threads.submit(_keep_small, ledger, ended)]
        try:
            seen = _look(driver, server, time.monotonic() + seconds)
            looked = driver.execute_script("return window.looked")
            severe = [entry["message"] for entry in driver.get_log("browser") if _is_error(entry)]
        finally:
            ended.set()
        for done in work:
            done.result()
    report.detail[title] = {
        "events": events,
        "events_added": sum(added),
        "times_added": len(added),
        "seen": seen,
        "looked": looked,
        "severe": severe,
    }
    report.claim(
        f"{title}: errors on the page and in the console", looked["errors"] + len(severe), "errors", 0, "lower"
    )
    report.claim(f"{title}: looks at which something was dimmed", looked["dimmed"], "looks", 0, "lower")
    report.claim(f"{title}: times it was drawn anew for what came", looked["changes"], "times", 2, "higher")
    for name in ("page", "server"):
        report.claim(
            f"{title}: memory of the {name}, last third over the one before",
            growth([one[name] for one in seen]) or 0.0,
            "x",
            GROWTH_MAX,
            "lower",
        )


def _write(ledger: Path, fleet: Fleet, ended: threading.Event, added: list[int]) -> None:
    """As its hosts do; `added` gets the number of events of each time."""
    with writers(ledger) as hosts:
        while not ended.wait(_WRITE_S):
            added.append(fleet.go_on(hosts, fleet.seconds + len(added) * _WRITE_S, _WRITE_S))


def _keep_small(ledger: Path, ended: threading.Event) -> None:
    while not ended.wait(_COMPACT_S):
        _upkeep(ledger)


def _upkeep(ledger: Path, grace_s: float = 60) -> None:
    compact(ledger, grace_s)
    roll_up(ledger, grace_s)


def _look(driver: Any, server: subprocess.Popen[bytes], until_s: float) -> list[dict[str, float]]:
    """Bytes of the page's heap, after its garbage went, and of the server, as time passes."""
    seen = []
    while time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        metrics = {one["name"]: one["value"] for one in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        seen.append({"page": metrics["JSHeapUsedSize"], "server": float(browser.memory_bytes(server))})
    return seen


def _is_error(entry: dict[str, Any]) -> bool:
    """Streamlit itself probes for its base address below each page, and is told 404."""
    return entry["level"] == "SEVERE" and "/_stcore/" not in entry["message"]


#: Looks ten times a second for what is faded or wrong, and counts how often what the page says has changed.
_LOOK = """
window.looked = {looks: 0, dimmed: 0, errors: 0, changes: 0};
let said = '';
setInterval(() => {
    const main = document.querySelector('[data-testid=stMain]');
    window.looked.looks += 1;
    const stale = [...main.querySelectorAll('[data-stale=true]')];
    if (stale.some(one => Number(getComputedStyle(one).opacity) < 0.99)) window.looked.dimmed += 1;
    if (main.querySelector('[data-testid=stException]')) window.looked.errors += 1;
    const now = main.textContent;
    if (now !== said) { window.looked.changes += 1; said = now; }
}, 100);"""


if __name__ == "__main__":
    main()
