"""`python -m benchmarks.dashboard`: a reader's waiting time in Chromium, on simulated ledgers."""

import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.dashboard.visitor import Visitor
from benchmarks.shared import arguments, measured
from benchmarks.traffic import Fleet, close_epochs
from rose.accept.report import Report, phase
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.ledger import Ledger
from tests.dashboard import browser
from tests.dashboard.browser import Screen

#: Each fleet, with about this many events, and the most seconds until a page's first figure.
SIZES = {"1 million events": (Fleet(64, 6_000), 2.0), "10 million events": (Fleet(128, 30_000), 3.0)}
QUICK = {"40,000 events": (Fleet(16, 1_000), 2.0)}
INTERACTION_MAX_S, SESSIONS, SESSIONS_MAX_S = 0.5, 10, 5.0
NEWS = 10_000
_ROUNDS = 3
#: A figure, a chart or a verdict below the heading: what the page is opened for.
_FIRST = """return !!document.querySelector(
    '[data-testid=stMain] :is([data-testid=stMetricValue], [data-testid=stVegaLiteChart] :is(canvas, svg), canvas)')"""


def main() -> None:
    options = arguments(__doc__, folder=True).parse_args()
    if not browser.is_there():
        sys.exit(browser.MISSING)
    report = Report("dashboard", options.quick, provenance="simulated")
    with measured(report, options.json, options.folder) as folder:
        for name, (fleet, first_max_s) in (QUICK if options.quick else SIZES).items():
            measure(report, name, fleet, first_max_s, folder)


def measure(report: Report, name: str, fleet: Fleet, first_max_s: float, folder: Path) -> None:
    ledger = folder / str(fleet.devices)
    with phase(f"making a ledger of {name}"):
        events = fleet.fill(ledger)
        close_epochs(ledger)
        compact(Ledger(ledger), grace_s=0)
        roll_up(Ledger(ledger))
    with browser.served(ledger, folder, ROSE_PRICE_BOOK="example") as (url, _), browser.chromium(Screen()) as driver:
        with phase(f"{name}: the first reader of a ledger that nobody has priced"):
            nobody = _open(driver, f"{url}/")
        addresses = browser.pages(driver, url)
        with phase(f"{name}: every page, {_ROUNDS} times"):
            opened: dict[str, list[dict[str, float]]] = {title: [] for title in addresses}
            for _ in range(_ROUNDS):
                for title, address in addresses.items():
                    opened[title].append(_open(driver, address))
        with phase(f"{name}: the Overview after news, {_ROUNDS} times"):
            news = []
            for number in range(_ROUNDS):
                fleet.more(ledger, NEWS, number)
                news.append(_open(driver, addresses["Overview"]))
        with phase(f"{name}: choices"):
            chosen = _choose(driver, addresses["Overview"])
        with phase(f"{name}: {SESSIONS} sessions at once"):
            at_once = _at_once(url)
    for title, times in opened.items():
        first_s = statistics.median(one["first_s"] for one in times)
        report.claim(f"{name}: {title}, first figure", first_s, "s", first_max_s, "lower")
    after_s = statistics.median(one["first_s"] for one in news)
    report.claim(f"{name}: Overview after {NEWS:,} more events, first figure", after_s, "s", first_max_s, "lower")
    report.claim(f"{name}: a choice in the bar", statistics.median(chosen), "s", INTERACTION_MAX_S, "lower")
    report.claim(f"{name}: {SESSIONS} sessions at once, the last", max(at_once), "s", SESSIONS_MAX_S, "lower")
    report.detail[name] = {
        "events": events,
        "unpriced": nobody,
        "pages": opened,
        "after_news": news,
        "choices_s": chosen,
        "at_once_s": at_once,
    }


def _open(driver: Any, address: str) -> dict[str, float]:
    driver.get("about:blank")
    began = time.perf_counter()
    driver.get(address)
    browser.wait_for(f"a figure on {address}", lambda: driver.execute_script(_FIRST) or browser.settled(driver))
    first_s = time.perf_counter() - began
    browser.wait_for(f"all of {address}", lambda: browser.settled(driver))
    return {"first_s": first_s, "all_s": time.perf_counter() - began}


def _choose(driver: Any, address: str) -> list[float]:
    """Return the seconds from a choice of the other view until the page shows it."""
    driver.get(address)
    browser.wait_for(address, lambda: browser.settled(driver))
    views = {"fully loaded": "?view=fully-loaded", "amortized": "/"}
    for option, query in views.items():
        _pick(driver, option, query)
    return [_pick(driver, option, query) for _ in range(_ROUNDS) for option, query in views.items()]


def _pick(driver: Any, option: str, query: str) -> float:
    box = driver.find_element("css selector", '[data-testid=stSelectbox] input[aria-label*="View"]')
    box.click()
    options = f"//*[@role='option'][normalize-space()='{option}']"
    chosen = browser.wait_for(f"the option {option}", lambda: driver.find_elements("xpath", options))[0]
    began = time.perf_counter()
    chosen.click()
    # The address changes once the page is being made for the choice.
    browser.wait_for(f"{option} in the address", lambda: driver.current_url.endswith(query))
    browser.wait_for(f"the page with {option}", lambda: browser.settled(driver))
    return time.perf_counter() - began


def _at_once(url: str) -> list[float]:
    """Return the seconds until each new session has the whole Overview."""

    def one(_: int) -> float:
        began = time.perf_counter()
        Visitor(url).open()
        return time.perf_counter() - began

    with ThreadPoolExecutor(SESSIONS) as threads:
        return list(threads.map(one, range(SESSIONS)))


if __name__ == "__main__":
    main()
