"""Statements that try to write, to read other files or to bring the host down, on the folder and by the controller."""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import traffic
from benchmarks.ledger import hostile_made
from rose.accept.report import Report
from rose.ledger.hosts.service import LedgerService, Limits
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import QueryError, query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from rose.tokens import of_secret

TIMEOUT_S, TIMEOUT_QUICK_S = 2.0, 0.25
MEMORY_GB = 0.5
_AT_ONCE = 2  #: Statements in parallel: most of their time is waiting.
SECRET = "hunter2"  #: In a file that no statement may read.
_QUICK_STRIDE = 25  #: With `--quick` each way tries one statement of this many, and the two ways try different ones.
#: Files that change because the controller writes its access log.
_LOGGED = ("ledger/live/gateway/", "ledger/heads/gateway.", "ledger/ledger.duckdb", "ledger/writers.jsonl")


@dataclass(slots=True)
class _Outcome:
    """Counts statements, and holds those that were let through or returned the secret."""

    tried: int = 0
    passed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def measure(report: Report, folder: Path) -> None:
    root, timeout_s = folder / "ledger", TIMEOUT_QUICK_S if report.quick else TIMEOUT_S
    (folder / "secret.csv").write_text(f"password\n{SECRET}\n", encoding="utf-8")
    with LedgerWriter.open(root, "w", "r", "simulated") as writer:
        for number in range(1000):
            writer.record(traffic.turn(number))
    texts = hostile_made.statements().values()
    statements = [text.replace("{root}", str(root)).replace("{outside}", str(root.parent)) for text in texts]
    before = _files(folder)
    local = _try(
        lambda text: query(Ledger(root), text, timeout_s=timeout_s, memory_limit_gb=MEMORY_GB),
        statements[::_QUICK_STRIDE] if report.quick else statements,
    )
    changed = before ^ _files(folder)

    limits = Limits(timeout_s=timeout_s, memory_gb=MEMORY_GB, queries=_AT_ONCE, wait_s=60.0)
    reader = of_secret("hostile", "a-token-of-a-hostile-reader", ("read",))
    with closing(LedgerService(Ledger(root), lambda _: reader, limits)) as service:
        caller = service.caller("", "127.0.0.1:1")
        far = _try(
            lambda text: service.query(caller, text, 10_000, timeout_s),
            statements[_QUICK_STRIDE // 2 :: _QUICK_STRIDE] if report.quick else statements,
        )
    # The controller's access log grows, and the catalog with it; verification compares what the catalog defines.
    changed |= {(name, content) for name, content in before ^ _files(folder) if not name.startswith(_LOGGED)}
    unlogged = far.tried - int(query(Ledger(root), "SELECT count(*) FROM access WHERE action = 'query'").rows[0][0])
    assert query(Ledger(root), "SELECT count(*) FROM turn").rows == [(1000,)], "the ledger still answers"
    assert not (problems := verify(Ledger(root)).problems), problems

    tried, passed = local.tried + far.tried, [*local.passed, *far.passed]
    report.claim(f"hostile statements let through, of {tried}", len(passed), "statements", 0, "lower")
    report.claim("  files they changed", len(changed), "files", 0, "lower")
    report.claim("  through the controller's door and not in its access log", unlogged, "statements", 0, "lower")
    slowest_s = max(local.slowest_s, far.slowest_s)
    report.claim(f"  longest until stopped, with a limit of {timeout_s:g} s", slowest_s, "s", 2 * TIMEOUT_S, "lower")
    report.detail["hostile"] = {"statements": len(statements), "let_through": passed}


def _try(attempt: Callable[[str], object], statements: Sequence[str]) -> _Outcome:
    outcome = _Outcome(tried=len(statements))

    def one(statement: str) -> None:
        began = time.perf_counter()
        try:
            attempt(statement)
            outcome.passed.append(statement[:1000])
        except QueryError as error:
            if SECRET in str(error):
                outcome.passed.append(statement[:1000])
        outcome.slowest_s = max(outcome.slowest_s, time.perf_counter() - began)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(one, statements))
    return outcome


def _files(folder: Path) -> set[tuple[str, str]]:
    return {
        (str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*")
        if path.is_file() and "locks" not in path.parts
    }
