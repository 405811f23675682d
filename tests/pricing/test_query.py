import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import sql
from rose import events
from rose.ledger.files import catalog
from rose.ledger.growth.compaction import compact
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing import query
from rose.pricing.query import pin, unpin
from tests.ledger.conftest import close_epochs, record

FOLDERS = ("answers", "borrowing", "dashboard", "jobs", "ledger", "metrics", "run")
ROOT = Path(sql.__file__).parent
NAMES = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.sql")
)
#: Of each query, its name with its folder.
PATHS = {name.rpartition("/")[2]: name for name in NAMES}


@pytest.fixture(scope="module")
def opened(sample_kept: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(catalog.connect(sample_kept)) as connection:
        yield connection


@pytest.mark.parametrize("name", NAMES)
def test_every_query_runs_by_hand_as_its_head_says(opened: duckdb.DuckDBPyConnection, name: str) -> None:
    made: set[str] = set()

    def run(query_name: str) -> None:
        text = sql.read(f"{query_name}.sql")
        for makers in re.findall(r"\b(?:which|that) (`\w+`(?: and `\w+`)*) makes?\b", text.replace("\n-- ", " ")):
            for maker in re.findall(r"\w+", makers.replace(" and ", " ")):
                if maker not in made:
                    made.add(maker)
                    run(PATHS[maker])
        for statement in re.findall(r"SET VARIABLE [^;]+;", text):
            connection.execute(statement.replace("'...'", "'run'"))
        connection.execute(text).fetchall()

    # Of its own in what can be left behind: variables and temporary tables.
    with closing(opened.cursor()) as connection:
        connection.execute("USE ledger")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET VARIABLE run_id = 'run'")
        run(name)


def test_a_snapshot_does_not_see_what_is_written_later(sample: Path, write_ledger: Any) -> None:
    with closing(catalog.connect(sample)) as connection:
        query.set_variables(connection, run_id="run")
        query.snapshot(connection, Ledger(sample), "run")
        before = query.rows(connection, "run/totals")
        write_ledger([events.Preemption(action="cut", reason="later", tokens_lost=5)], root=sample)
        assert query.rows(connection, "run/totals") == before
    with closing(catalog.connect(sample)) as connection:
        query.set_variables(connection, run_id="run")
        assert query.rows(connection, "run/totals") != before


def test_a_variable_that_no_query_reads_is_refused(sample_kept: Path) -> None:
    with closing(catalog.connect(sample_kept)) as connection, pytest.raises(KeyError, match="runid"):
        query.set_variables(connection, runid="run")


def lost(connection):
    (row,) = connection.execute("SELECT sum(tokens_lost) FROM preemption").fetchall()
    return int(row[0])


def cut(tokens):
    return events.Preemption(action="cut", reason="serving has work", tokens_lost=tokens)


def test_a_pinned_connection_reads_the_ledger_as_it_was(tmp_path):
    root = record(tmp_path / "ledger", cut(1), run_id="run")
    close_epochs(root)
    compact(Ledger(root), grace_s=0)
    assert list(root.glob("compacted/w/*.parquet"))
    with LedgerWriter.open(root, "w", "run", "live") as writer, closing(catalog.connect(root)) as connection:
        writer.record(cut(2))
        pin(connection, Ledger(root))
        assert lost(connection) == 3
        writer.record(cut(4))
        assert lost(connection) == 3
        unpin(connection)
        assert lost(connection) == 7
