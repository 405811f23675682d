"""`python -m benchmarks.pricing.child WAY LEDGER ...`: price in one way in its own process, and print JSON."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shared import timed
from rose.ledger.ledger import Ledger
from rose.pricing.price_books import pricebook


def main() -> None:
    way, root, *rest = sys.argv[1:]
    ways: dict[str, Callable[..., dict[str, Any]]] = {"charges": charges, "naive": naive, "increments": increments}
    print(json.dumps({**ways[way](Path(root), *rest), "rss_peak_bytes": _peak_bytes()}))


def _peak_bytes() -> int:
    """Return the peak memory; `getrusage` may give the parent's peak."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def charges(root: Path, out: str) -> dict[str, Any]:
    """Price with earlier results, if any; write the rows to the Parquet file `out`."""
    from benchmarks.pricing import naive as analyst
    from rose.pricing import charges as of_rose
    from rose.pricing.closing import store

    book = pricebook.load("example")
    priced, seconds = timed(lambda: of_rose.price(Ledger(root), book))
    analyst.of_charges(priced.frame).write_parquet(out)
    return {
        "seconds": seconds,
        "rows": priced.frame.height,
        "total_nano": priced.total_nano,
        "sha256": hashlib.sha256(store.parquet(priced.frame)).hexdigest(),
    }


def naive(root: Path, out: str) -> dict[str, Any]:
    from benchmarks.pricing import naive as analyst

    book = pricebook.load("example")
    priced, seconds = timed(lambda: analyst.price(root, book.text))
    analyst.of_naive(priced).write_parquet(out)
    return {"seconds": seconds, "rows": len(priced), "total_nano": int(priced["cost_nano"].sum())}


def increments(root: Path, devices: str, seconds: str, events: str, rounds: str) -> dict[str, Any]:
    """Price a growing ledger repeatedly; return the seconds."""
    from benchmarks.traffic import Fleet
    from rose.pricing import charges as of_rose

    fleet, book, ledger = Fleet(int(devices), int(seconds)), pricebook.load("example"), Ledger(root)
    (root / "pricing.duckdb").touch()  # Pricing keeps its results for a small ledger only if the file exists.
    _, first = timed(lambda: of_rose.price(ledger, book))
    later_s, appended = [], []
    for number in range(int(rounds)):
        appended.append(fleet.more(root, int(events), number))
        later_s.append(timed(lambda: of_rose.price(ledger, book))[1])
    _, unchanged = timed(lambda: of_rose.price(ledger, book))
    return {"first_s": first, "after_more_s": later_s, "events_appended": appended, "unchanged_s": unchanged}


if __name__ == "__main__":
    main()
