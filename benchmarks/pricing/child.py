"""`python -m benchmarks.pricing.child WAY LEDGER ...`: one way of pricing in a process of its own, told in JSON.

A process of its own, so that its peak of memory is that of this way alone, and nothing is warm but the disk's cache.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shared import peak_bytes, timed
from rose.pricing.price_books import pricebook


def main() -> None:
    """Do what the command line names, and print what came of it."""
    way, root, *rest = sys.argv[1:]
    ways: dict[str, Callable[..., dict[str, Any]]] = {
        "charges": charges,
        "naive": naive,
        "increments": increments,
        "books": books,
    }
    print(json.dumps({**ways[way](Path(root), *rest), "rss_peak_bytes": peak_bytes()}))


def charges(root: Path, out: str) -> dict[str, Any]:
    """Price with what was kept of earlier calls if there is any; the rows go to the Parquet file `out`."""
    from benchmarks.pricing import naive as analyst
    from rose.pricing import charges as of_rose
    from rose.pricing.closing import store

    book = pricebook.load("example")
    priced, seconds = timed(lambda: of_rose.price(root, book))
    analyst.of_charges(priced.frame).write_parquet(out)
    return {
        "seconds": seconds,
        "rows": priced.frame.height,
        "total_nano": priced.total_nano,
        "sha256": hashlib.sha256(store.parquet(priced.frame)).hexdigest(),
    }


def naive(root: Path, out: str) -> dict[str, Any]:
    """Price as the analyst did; the rows go to the Parquet file `out`."""
    from benchmarks.pricing import naive as analyst

    book = pricebook.load("example")
    priced, seconds = timed(lambda: analyst.price(root, book.text))
    analyst.of_naive(priced).write_parquet(out)
    return {"seconds": seconds, "rows": len(priced), "total_nano": int(priced["cost_nano"].sum())}


def increments(root: Path, devices: str, seconds: str, events: str, rounds: str) -> dict[str, Any]:
    """Price a ledger again and again while it grows, in a process that goes on: seconds of each time."""
    from benchmarks.traffic import Fleet
    from rose.ledger.examine import Seen
    from rose.pricing import charges as of_rose

    fleet, book, seen = Fleet(int(devices), int(seconds)), pricebook.load("example"), Seen()
    # A ledger too small for it is kept up to date all the same, once there is such a file.
    (root / "pricing.duckdb").touch()
    _, first = timed(lambda: of_rose.price(root, book, seen=seen))
    each, appended = [], []
    for number in range(int(rounds)):
        appended.append(fleet.more(root, int(events), number))
        each.append(timed(lambda: of_rose.price(root, book, seen=seen))[1])
    _, unchanged = timed(lambda: of_rose.price(root, book, seen=seen))
    return {"first_s": first, "after_more_s": each, "events_appended": appended, "unchanged_s": unchanged}


def books(root: Path, folder: str) -> dict[str, Any]:
    """Close all there is, and write it as FOCUS rows: seconds of each."""
    from rose.pricing import charges as of_rose
    from rose.pricing.closing import close
    from rose.pricing.closing.bill import of_close
    from rose.pricing.closing.period import Period
    from rose.pricing.export import focus
    from rose.pricing.money import NS_PER_HOUR

    # Made-up prices under a name of their own: the books refuse the example's.
    book = pricebook.parse(
        pricebook.load("example").text.replace('name = "example"', 'name = "benchmark"'), "benchmark"
    )
    priced = of_rose.price(root, book)
    period = Period(priced.from_ns // NS_PER_HOUR * NS_PER_HOUR, -(-priced.to_ns // NS_PER_HOUR) * NS_PER_HOUR)
    closed, close_s = timed(lambda: close.close(root, period, book, with_open_runs=True, now_us=period.to_ns // 1000))
    exported, bill_s = timed(lambda: of_close(root, closed.close_id))
    written, focus_s = timed(lambda: focus.write(exported, Path(folder) / "focus.parquet"))
    return {"close_s": close_s, "bill_s": bill_s, "focus_s": focus_s, "focus_rows": written.rows}


if __name__ == "__main__":
    main()
