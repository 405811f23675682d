"""`python -m benchmarks.dashboard.watch`: a page that is watched for minutes while a fleet writes."""

from __future__ import annotations

import statistics
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
from benchmarks.pricing import fill
from benchmarks.pricing.traffic import Fleet
from benchmarks.report import Report, arguments, finish, phase

PAGES = ("Fleet now", "Overview")
FLEET = Fleet(16, 900)
#: Events of ten seconds of the fleet, which come each second.
_EACH = FLEET.events * 10 // FLEET.seconds
GROWTH_MAX = 1.05
_LOOK_S = 2.0


def main() -> None:
    """Watch each page; the exit code is 0 when the watching itself worked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--minutes", type=float, help="for each page; 10, or half a minute with --quick")
    given = parser.parse_args()
    if not browser.is_there():
        sys.exit(browser.MISSING)
    report = Report("dashboard.watch", given.quick, provenance="simulated")
    minutes = given.minutes or (0.5 if given.quick else 10.0)
    try:
        with tempfile.TemporaryDirectory(prefix="dashboard-watch-") as folder:
            for title in PAGES:
                watch(report, title, minutes * 60, Path(folder) / title.replace(" ", "-"))
    finally:
        finish(report, given.json)


def watch(report: Report, title: str, seconds: float, folder: Path) -> None:
    """Look at one page of a ledger to which ten seconds of its fleet are added each second."""
    folder.mkdir()
    ledger = folder / "ledger"
    fill.fill(ledger, FLEET)
    ended, added = threading.Event(), [0]

    def write() -> None:
        while not ended.wait(1.0):
            fill.more(ledger, FLEET, _EACH, added[0])
            added[0] += 1

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
        writer = stack.enter_context(ThreadPoolExecutor(1)).submit(write)
        try:
            seen = _look(driver, server, time.monotonic() + seconds)
            looked = driver.execute_script("return window.looked")
            severe = [entry["message"] for entry in driver.get_log("browser") if _is_error(entry)]
        finally:
            ended.set()
        writer.result()
    report.detail[title] = {"times_added": added[0], "seen": seen, "looked": looked, "severe": severe}
    report.claim(
        f"{title}: errors on the page and in the console", looked["errors"] + len(severe), "errors", 0, "lower"
    )
    report.claim(f"{title}: looks at which something was dimmed", looked["dimmed"], "looks", 0, "lower")
    report.claim(f"{title}: times it was drawn anew for what came", looked["changes"], "times", 2, "higher")
    for name in ("page", "server"):
        report.claim(f"{title}: memory of the {name}, last third over the one before", _growth(seen, name), "x",
                     GROWTH_MAX, "lower")  # fmt: skip


def _look(driver: Any, server: subprocess.Popen[bytes], until_s: float) -> list[dict[str, float]]:
    """Bytes of the page's heap, after its garbage went, and of the server, as time passes."""
    seen = []
    while time.monotonic() < until_s:
        time.sleep(_LOOK_S)
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        metrics = {one["name"]: one["value"] for one in driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
        seen.append({"page": metrics["JSHeapUsedSize"], "server": float(browser.memory_bytes(server))})
    return seen


def _growth(seen: list[dict[str, float]], name: str) -> float:
    third = max(1, len(seen) // 3)
    last, before = ([one[name] for one in part] for part in (seen[-third:], seen[-2 * third : -third] or seen[:third]))
    return statistics.median(last) / statistics.median(before)


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
