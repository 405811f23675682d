"""Tools that docs/ledger.md names, on a ledger with live and compacted events."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from rose.ledger import catalog, segments
from rose.ledger.growth import compaction
from rose.ledger.writer import LedgerWriter

LEASES = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, lease: Callable[..., Any]) -> Path:
    root = tmp_path_factory.mktemp("clients") / "a ledger" / "ledger"
    for half in range(2):
        with LedgerWriter.open(root, f"w{half}", "r") as writer:
            for n in range(LEASES // 2):
                writer.record(lease(lease_id=f"l{half}-{n}", at_us=1_000_000 + n), durable=False)
        if not half:
            tail = segments.recover(root, "w0")
            assert tail is not None
            segments.begin_epoch(root, tail)
            compaction.compact(root, grace_s=3600)
    catalog.connect(root).close()
    assert list((root / "compacted").rglob("*.parquet"))
    return root


def test_polars_reads_all_of_it(root: Path, tmp_path: Path) -> None:
    with duckdb.connect(root / "ledger.duckdb", read_only=True) as ledger:
        leases = ledger.sql("from lease").pl()
        ledger.sql(f"copy lease to '{tmp_path}/lease.parquet'")
    assert leases["lease_id"].n_unique() == leases.height == LEASES
    assert pl.scan_parquet(tmp_path / "lease.parquet").select(pl.len()).collect().item() == LEASES


def test_pandas_reads_all_of_it(root: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with duckdb.connect(root / "ledger.duckdb", read_only=True) as ledger:
        leases = ledger.sql("from lease").df()
        exact = ledger.sql("select 9007199254740993 as n union all select null").to_arrow_table()
    assert len(leases) == LEASES
    assert str(leases["event_time"].dtype).startswith("datetime64[")
    assert exact.to_pandas(types_mapper=pandas.ArrowDtype)["n"].max() == 9007199254740993


def test_the_command_line_reads_all_of_it(root: Path, tmp_path: Path) -> None:
    duckdb_program = shutil.which("duckdb")
    if duckdb_program is None:
        pytest.skip("needs duckdb: pip install duckdb-cli")
    text = "select count(*) as leases, max(event_time) as newest from lease"
    command = [duckdb_program, "-readonly", "-csv", root / "ledger.duckdb", text]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[1:] == [f"{LEASES},1970-01-01 00:00:01.000019"], done.stderr
