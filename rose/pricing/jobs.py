"""The background jobs that need prices: `report` and `alerts`."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import Job, Settings, ledger_jobs
from rose.pricing.money import PricingError

if TYPE_CHECKING:
    from rose.pricing.answers.run_report import Report

_REPORT_EVERY_S, _ALERTS_EVERY_S = 900.0, 300.0
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def planned(settings: Settings) -> list[Job]:
    jobs = ledger_jobs(settings)
    if settings.reports is not None:
        make = functools.partial(report, folder=settings.reports, price_book=settings.price_book)
        jobs.append(Job("report", make, _REPORT_EVERY_S))
    if settings.alerts is not None:
        jobs.append(Job("alerts", functools.partial(alerts, file=settings.alerts), _ALERTS_EVERY_S))
    return jobs


def report(ledger: Ledger, *, folder: Path, price_book: str | None) -> Mapping[str, object]:
    """Write the missing reports of ended runs, and the newest running run's. Raises LedgerError or PricingError."""
    from rose.ledger import verified
    from rose.pricing import query
    from rose.pricing.answers import run_report as reporting
    from rose.pricing.price_books import pricebook

    named = None if price_book is None else pricebook.choose(ledger, price_book)
    with ledger.connect() as connection:
        runs = query.rows(connection, "jobs/runs")
    reported = _reported(folder)
    ledger.seen = verified.load(ledger.folder)  # Verifying every byte for each run would take hours on a large ledger.
    newest = next((run["run_id"] for run in runs if run["status"] == "running"), None)
    written, refused = [], {}
    for run in runs:
        ended = run["status"] != "running" and (run["run_id"], run["status"], run["ended_at"]) not in reported
        if not ended and run["run_id"] != newest:
            continue
        try:
            book = pricebook.choose(ledger, named, run_id=run["run_id"])
            written.append(_write(folder, reporting.build(ledger, run["run_id"], book)))
        except PricingError as error:
            if not ledger.verify().ok:
                raise
            refused[run["run_id"]] = str(error)
    verified.save(ledger.folder, ledger.seen)
    return {"written": written, "refused": refused, "folder": str(folder)}


def alerts(ledger: Ledger, *, file: Path) -> Mapping[str, object]:
    from rose.pricing.alerts import AlertsError, check, load

    done = check(ledger, load(file))
    if done.failed:
        raise AlertsError("; ".join(f"{entry.title} -> {entry.to}: {entry.error}" for entry in done.failed))
    return done.to_json()


def _reported(folder: Path) -> set[tuple[str, str, str | None]]:
    reported = set()
    for path in folder.glob("*.json"):
        try:
            run = json.loads(path.read_bytes())["run"]
            reported.add((run["run_id"], run["status"], run["ended_at"]))
        except (ValueError, LookupError, TypeError):
            continue  # Not a report, or damaged.
    return reported


def _write(folder: Path, made: Report) -> str:
    from rose.ledger.files import layout
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
    if _SAFE_NAME.fullmatch(run_id):
        return run_id
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', run_id)[:80]}-{sha256(run_id.encode()).hexdigest()[:12]}"
