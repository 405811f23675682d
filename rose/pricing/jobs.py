"""The background jobs that need prices: `price` keeps the books' costs of days, `report` writes reports to a folder,
`alerts` sends alerts and scheduled reports."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rose.ledger.layout import LedgerError
from rose.ledger.upkeep.jobs import Job, Settings, ledger_jobs
from rose.pricing.money import PricingError

if TYPE_CHECKING:
    from rose.pricing.charges.days import DayCost, DeviceDay
    from rose.pricing.document import Report
    from rose.pricing.price_books.pricebook import PriceBook

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def planned(settings: Settings) -> list[Job]:
    """All jobs that `settings` ask for: the ledger's own, and those that need prices. Raises LedgerError."""
    jobs = ledger_jobs(settings)
    jobs.append(Job("price", functools.partial(price, price_book=settings.price_book), settings.price_every_s))
    if settings.reports is not None:
        make = functools.partial(report, folder=settings.reports, price_book=settings.price_book)
        jobs.append(Job("report", make, settings.report_every_s))
    if settings.alerts is not None:
        jobs.append(Job("alerts", functools.partial(alerts, file=settings.alerts), settings.alerts_every_s))
    return jobs


def price(root: Path, *, price_book: str | None) -> Mapping[str, object]:
    """Bring the books' costs of days up to date, and make the sums of postings that `rose cost` reads.

    Days that cost what the books say already are left as they are.

    `price_book` None prices by the book that `choice.choose` gives, and prices nothing where it gives none.
    Raises PricingError where a day cannot be priced or the price book was not adopted, though the rules ask for that,
    and LedgerError; then nothing was changed.
    """
    from rose.ledger.upkeep import books
    from rose.pricing.charges import days
    from rose.pricing.closing import approval
    from rose.pricing.closing.records import postings
    from rose.pricing.figures import BookFacts
    from rose.pricing.price_books import choice
    from rose.pricing.spend import sums

    sums.keep(root, (posting for posted in postings(root).values() for posting in posted))
    try:
        book = choice.choose(root, price_book)
    except choice.NoPriceBookError as error:
        return {"device_days": 0, "changed": 0, "why": str(error)}
    approval.check_adopted(root, book)
    costs = days.price_days(root, book)
    known = _known_costs(root)
    changed = {what: cost for what, cost in costs.items() if known.get(what) != cost}
    if changed:
        with books.change(root) as connection:
            row = [book.sha256, book.name, book.version, book.currency, book.text]
            connection.execute("INSERT OR IGNORE INTO price_book VALUES (?, ?, ?, ?, ?, now()::TIMESTAMP)", row)
            _replace_days(connection, changed, book)
    return {"device_days": len(costs), "changed": len(changed), "price_book": BookFacts.from_book(book).text}


def report(root: Path, *, folder: Path, price_book: str | None) -> Mapping[str, object]:
    """Write the cost report of every run that ended since, and of the newest one that runs, to `folder`.

    A run that cannot be priced is in the result with the reason, and is not tried again once it has ended.
    Raises LedgerError, and PricingError for a ledger that does not verify.
    """
    from rose.ledger import catalog, verified, verify
    from rose.ledger.upkeep import books
    from rose.pricing import query
    from rose.pricing.price_books import choice
    from rose.pricing.run import report as reporting

    # One that is named is read before any run is looked at; else each run has its own.
    named = None if price_book is None else choice.choose(root, price_book)
    with catalog.connect(root) as connection:
        runs = query.rows(connection, "jobs/runs")
    done = _exported(root, folder)
    # As the dashboard does: every byte, for each run, would be hours of a large ledger.
    seen = verified.load(root)
    newest = next((run["run_id"] for run in runs if run["status"] == "running"), None)
    written, refused, kept = [], {}, []
    for run in runs:
        due = run["run_id"] == newest or (
            run["status"] != "running" and done.get(run["run_id"]) != (run["status"], run["ended_at"])
        )
        if not due:
            continue
        file, why = None, None
        try:
            book = choice.choose(root, named, run_id=run["run_id"])
        except PricingError as error:
            # Not kept: somebody will decide on its prices.
            refused[run["run_id"]] = str(error)
            continue
        try:
            file = _write(folder, reporting.build(root, run["run_id"], book, seen=seen))
            written.append(file)
        except PricingError as error:
            if not verify.verify(root, seen=seen).ok:
                raise
            why = refused[run["run_id"]] = str(error)
        if file is not None or run["status"] != "running":
            kept.append([str(folder), run["run_id"], run["status"], run["ended_at"], file, book.sha256, why])
    verified.save(root, seen)
    if kept:
        with books.change(root) as connection:
            insert = "INSERT OR REPLACE INTO report_export VALUES (?, ?, ?, ?, ?, ?, ?, now()::TIMESTAMP)"
            connection.executemany(insert, kept)
    return {"written": written, "refused": refused, "folder": str(folder)}


def alerts(root: Path, *, file: Path) -> Mapping[str, object]:
    """Look at the rules of a file of alerts, and send what is due.

    Raises AlertsError for a file that cannot be used, PricingError where a report cannot be made, LedgerError.
    """
    from rose.pricing.alerts import run

    return run.job(root, file=file)


def _known_costs(root: Path) -> dict[DeviceDay, DayCost]:
    """What the books say now, in the shape of what is worked out anew."""
    from rose.ledger.upkeep import books
    from rose.pricing import query
    from rose.pricing.charges.days import DayCost, DeviceDay

    if not (root / books.BOOKS).exists():
        return {}
    with books.connect(root) as connection:
        rows = query.rows(connection, "closing/priced_days")
    classes: dict[DeviceDay, str] = {}
    times: dict[DeviceDay, dict[str, int]] = {}
    costs: dict[DeviceDay, dict[str, int]] = {}
    for row in rows:
        what = DeviceDay(row["day"], row["run_id"], row["provenance"], row["device_id"])
        classes[what] = row["device_class"]
        times.setdefault(what, {})[row["bucket"]] = row["ns"]
        costs.setdefault(what, {})[row["bucket"]] = row["cost_nano"]
    return {
        what: DayCost(device_class=name, bucket_ns=times[what], cost_nano=costs[what]) for what, name in classes.items()
    }


def _replace_days(connection: Any, changed: Mapping[DeviceDay, DayCost], book: PriceBook) -> None:
    import sql

    keys = ("day", "run_id", "provenance", "device_id")
    forget = {key: [getattr(what, key) for what in changed] for key in keys}
    connection.execute(sql.read("closing/forget_days.sql"), forget)
    rows = [(what, cost, bucket) for what, cost in changed.items() for bucket in cost.bucket_ns]
    add = {key: [getattr(what, key) for what, _, _ in rows] for key in keys} | {
        "device_class": [cost.device_class for _, cost, _ in rows],
        "bucket": [bucket for _, _, bucket in rows],
        "ns": [cost.bucket_ns[bucket] for _, cost, bucket in rows],
        "cost_nano": [cost.cost_nano[bucket] for _, cost, bucket in rows],
        "book_sha256": book.sha256,
    }
    connection.execute(sql.read("closing/add_days.sql"), add)


def _exported(root: Path, folder: Path) -> dict[str, tuple[str, datetime | None]]:
    """Status and end of each run as it was when it was last reported to `folder`."""
    from rose.ledger.upkeep import books

    if not (root / books.BOOKS).exists():
        return {}
    with books.connect(root) as connection:
        select = "SELECT run_id, status, ended_at FROM report_export WHERE folder = ?"
        return {
            run_id: (status, ended_at)
            for run_id, status, ended_at in connection.execute(select, [str(folder)]).fetchall()
        }


def _write(folder: Path, made: Report) -> str:
    """Write a report as JSON and as CSV, each whole or not at all; returns the name of the JSON file."""
    from rose.ledger import layout
    from rose.pricing.document import to_csv

    day = datetime.fromtimestamp(made.stamp.to_ns // 1_000_000_000, UTC).date()
    stem = f"{_file_name(made.run.run_id)}_{day}"
    data = made.to_json()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        layout.write_file(folder / f"{stem}.csv", to_csv(data).encode())
        layout.write_file(folder / f"{stem}.json", json.dumps(data, indent=2).encode())
    except OSError as error:
        raise LedgerError(f"cannot write reports to {folder}: {error.strerror}; give another --reports") from error
    return f"{stem}.json"


def _file_name(run_id: str) -> str:
    """A run's id as part of a file's name: as it is where that can do no harm, else made safe and told apart."""
    if _SAFE_NAME.fullmatch(run_id):
        return run_id
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', run_id)[:80]}-{sha256(run_id.encode()).hexdigest()[:12]}"
