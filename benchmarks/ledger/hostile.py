"""Statements that try to write, to look elsewhere or to bring the host down: each must be refused or stopped."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from benchmarks.ledger import traffic
from benchmarks.report import ROOT, Report
from rose.ledger.reading.query import QueryError, query
from rose.ledger.writer import LedgerWriter

FILE = ROOT / "benchmarks" / "hostile.sql"
TIMEOUT_S = 2.0


def measure(report: Report, folder: Path) -> None:
    """Run every statement as a remote reader's query is run."""
    root = folder / "ledger"
    with LedgerWriter.open(root, "w", "r", "simulated") as writer:
        for number in range(1000):
            writer.record(traffic.turn(number))
    before, passed, slowest = _files(root), [], 0.0
    statements = hostile_statements()
    for statement in statements:
        began = time.perf_counter()
        try:
            query(root, statement, timeout_s=TIMEOUT_S, memory_limit_gb=0.5)
            passed.append(statement)
        except QueryError:
            slowest = max(slowest, time.perf_counter() - began)
    assert query(root, "SELECT count(*) FROM event").rows == [(1000,)], "the ledger still answers"
    report.claim(f"hostile statements let through, of {len(statements)}", len(passed), "statements", 0, "lower")
    report.claim("  files they changed", len(before ^ _files(root)), "files", 0, "lower")
    report.claim(f"  longest until stopped, with a limit of {TIMEOUT_S:g} s", slowest, "s", 2 * TIMEOUT_S, "lower")
    report.detail["hostile"] = {"statements": len(statements), "let_through": passed, "slowest_s": round(slowest, 2)}


def hostile_statements() -> list[str]:
    """The statements of hostile.sql: paragraphs, each with a comment that says what it tries."""
    return [text.strip() for text in FILE.read_text(encoding="utf-8").split("\n\n") if text.strip()]


def _files(root: Path) -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(root)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in root.rglob("*")
        if path.is_file() and "locks" not in path.parts
    }
