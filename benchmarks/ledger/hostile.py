"""Hostile statements against the folder and the controller."""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import traffic
from rose.accept.report import ROOT, Report
from rose.ledger.hosts.service import LedgerService, Limits
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import QueryError, query
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
    """Counts statements, and keeps those that passed or returned the secret."""

    tried: int = 0
    passed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def measure(report: Report, folder: Path) -> None:
    root, timeout_s = folder / "ledger", TIMEOUT_QUICK_S if report.quick else TIMEOUT_S
    (folder / "secret.csv").write_text(f"password\n{SECRET}\n", encoding="utf-8")
    with LedgerWriter.open(root, "w", "r", "simulated") as writer:
        for number in range(1000):
            writer.record(traffic.turn(number))
    outside = str(root.parent)
    texts = [text.replace("{root}", str(root)).replace("{outside}", outside) for text in statements().values()]
    before = _files(folder)
    local = _try(
        lambda text: query(Ledger(root), text, timeout_s=timeout_s, memory_limit_gb=MEMORY_GB),
        texts[::_QUICK_STRIDE] if report.quick else texts,
    )
    changed = before ^ _files(folder)

    limits = Limits(timeout_s=timeout_s, memory_gb=MEMORY_GB, queries=_AT_ONCE, wait_s=60.0)
    reader = of_secret("hostile", "a-token-of-a-hostile-reader", ("read",))
    with closing(LedgerService(Ledger(root), lambda _: reader, limits)) as service:
        caller = service.caller("", "127.0.0.1:1")
        far = _try(
            lambda text: service.query(caller, text, 10_000, timeout_s, lossless=False),
            texts[_QUICK_STRIDE // 2 :: _QUICK_STRIDE] if report.quick else texts,
        )
    # The controller's access log grows, and the catalog with it; verification compares what the catalog defines.
    changed |= {(name, content) for name, content in before ^ _files(folder) if not name.startswith(_LOGGED)}
    unlogged = far.tried - int(query(Ledger(root), "SELECT count(*) FROM access WHERE action = 'query'").rows[0][0])
    assert query(Ledger(root), "SELECT count(*) FROM turn").rows == [(1000,)], "the ledger still answers"
    assert not (problems := Ledger(root).verify().problems), problems

    tried, passed = local.tried + far.tried, [*local.passed, *far.passed]
    report.claim(f"hostile statements let through, of {tried}", len(passed), "statements", 0, "lower")
    report.claim("  files they changed", len(changed), "files", 0, "lower")
    report.claim("  through the controller and not in its access log", unlogged, "statements", 0, "lower")
    slowest_s = max(local.slowest_s, far.slowest_s)
    report.claim(f"  longest until stopped, with a limit of {timeout_s:g} s", slowest_s, "s", 2 * TIMEOUT_S, "lower")
    report.detail["hostile"] = {"statements": len(texts), "let_through": passed}


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


MADE: dict[str, str] = {
    "A line end, and a second statement.": "SELECT 1 --\n; DROP VIEW lease",
    "A byte that ends texts in C.": "SELECT 1\0; DROP VIEW lease",
    "A byte that ends texts in C, in a path.": "SELECT * FROM read_text('{outside}/secret.csv\0.parquet')",
    "A byte that ends texts in C, in a name.": 'SELECT * FROM "lease\0{outside}/secret.csv"',
    "Half a character.": "SELECT '\ud800'",
    "A line end that only some know.": "SELECT 1 --\r; DROP VIEW lease",
    "Nothing but blanks.": " " * 50_000,
    "More than is read.": "SELECT " + "1" * 100_001,
    "A comment longer than is read.": "SELECT 1 /*" + "x" * 100_000 + "*/",
    "Brackets in brackets.": "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "Brackets that are not closed.": "SELECT " + "(" * 90_000,
    "Subselects in subselects.": "SELECT " + "(SELECT " * 9_000 + "1" + ")" * 9_000,
    "Tables in tables.": "FROM " + "(FROM " * 9_000 + "lease" + ")" * 9_000,
    "Minus of minus.": "SELECT " + "- " * 45_000 + "1",
    "Not of not.": "SELECT " + "NOT " * 20_000 + "true",
    "Bits of bits.": "SELECT " + "~" * 90_000 + "1",
    "A long sum.": "SELECT 1" + "+1" * 45_000,
    "A long text of parts.": "SELECT ''" + "||''" * 20_000,
    "Lists in lists.": "SELECT " + "[" * 20_000 + "1" + "]" * 20_000,
    "Structs in structs.": "SELECT " + "{'a':" * 15_000 + "1" + "}" * 15_000,
    "Functions in functions.": "SELECT " + "abs(" * 15_000 + "1" + ")" * 15_000,
    "Casts of casts.": "SELECT 1" + "::INT" * 19_000,
    "Types in types.": "SELECT NULL::INT" + "[]" * 45_000,
    "Structs as types.": "SELECT NULL::" + "STRUCT(a " * 9_000 + "INT" + ")" * 9_000,
    "CASE in CASE.": "SELECT " + "CASE WHEN true THEN " * 4_000 + "1" + " END" * 4_000,
    "Lambdas in lambdas.": "SELECT " + "list_transform([1], lambda x: " * 3_000 + "1" + ")" * 3_000,
    "Unions of unions.": "FROM event" + " UNION ALL FROM event" * 4_500,
    "Unions in brackets.": "(" * 4_000 + "SELECT 1" + ") UNION SELECT 2" * 4_000,
    "Joins of joins.": "SELECT count(*) FROM range(10) " + ", range(10)" * 8_000,
    "Joins with conditions.": "SELECT count(*) FROM range(9) t0"
    + "".join(f" JOIN range(9) t{n} ON t{n}.range <> t{n - 1}.range" for n in range(1, 1_500)),
    "WITH in WITH.": "WITH a AS (" * 5_000 + "SELECT 1" + ") FROM a" * 5_000,
    "Names that double.": "SELECT 1 AS a0" + "".join(f", a{n - 1} + a{n - 1} AS a{n}" for n in range(1, 60)),
    "Texts that double.": "SELECT 'x' AS a0" + "".join(f", a{n - 1} || a{n - 1} AS a{n}" for n in range(1, 60)),
    "Columns that double.": "WITH c0 AS (SELECT 1 AS a)"
    + "".join(f", c{n} AS (SELECT * FROM c{n - 1}, c{n - 1} AS x)" for n in range(1, 30))
    + " FROM c29",
    "Rows that double.": "WITH c0 AS (SELECT 1 AS a)"
    + "".join(f", c{n} AS (FROM c{n - 1} UNION ALL FROM c{n - 1})" for n in range(1, 64))
    + " SELECT count(*) FROM c63 WHERE random() > 2",
    "Columns of columns.": "SELECT " + ", ".join(["COLUMNS(*)"] * 5_000) + " FROM event",
    "A pattern that grows.": "SELECT regexp_matches(repeat('a', 100000000), '((a{0,100}){0,100}){0,100}b')",
    "A number of many digits.": "SELECT " + "9" * 90_000 + "::INT",
    "A name of many letters, as a table.": 'FROM "' + "x" * 90_000 + '"',
    "Stars in a path.": "FROM '" + "*/" * 40_000 + "'",
    "Ways up in a path.": "FROM read_text('{root}/live/" + "../" * 20_000 + "etc/passwd')",
    "Many statements.": "SELECT 1;" * 10_000,
    "Many views, in one breath.": "SELECT count(*) FROM " + ", ".join(["event"] * 1_500) + " WHERE random() > 2",
    "Sets of groups of sets.": "SELECT count(*) FROM range(1000) t(i) GROUP BY CUBE ("
    + ", ".join(f"i % {n}" for n in range(2, 20))
    + ")",
}


def statements() -> dict[str, str]:
    lines = (ROOT / "benchmarks" / "hostile.sql").read_text(encoding="utf-8").split("\n")
    return {line: line for line in lines if line and not line.startswith("-- ")} | MADE
