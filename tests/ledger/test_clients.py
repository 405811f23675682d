"""The recipes of docs/reading.md, with the tools themselves, on a ledger with live and compacted events."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger import catalog, segments
from rose.ledger.growth import compaction
from rose.ledger.writer import LedgerWriter

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading.md"
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ledger"
LEASES = 40
#: Names DuckDB's JDBC driver, a jar, where there is one.
JAR = "DUCKDB_JDBC_JAR"


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


@pytest.mark.long
def test_the_recipes_run_on_the_sample_ledger_as_a_clone_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they need that a clone lacks, the first command of the document makes."""
    pytest.importorskip("pandas")
    brought = shutil.ignore_patterns("ledger.duckdb", "locks", "logs")
    shutil.copytree(SAMPLE, tmp_path / "sample_traces" / "ledger", ignore=brought)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROSE_LEDGER", raising=False)
    document = DOCUMENT.read_text(encoding="utf-8")
    first, *_ = re.findall(r"^```\w+\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    done = CliRunner().invoke(cli.app, shlex.split(first)[1:])
    assert done.exit_code == 0, done.output
    for recipe in re.findall(r"^```python\n(.*?)^```$", document, re.DOTALL | re.MULTILINE):
        exec(compile(recipe, DOCUMENT.name, "exec"), {})


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


def _java(tmp_path: Path) -> tuple[str, Path]:
    java = shutil.which("java")
    if java is None:
        pytest.skip("needs java 17 or later")
    program = re.search(r"^import java\..*?^}$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert program
    (tmp_path / "Runs.java").write_text(program[0], encoding="utf-8")
    return java, tmp_path / "Runs.java"


def test_the_java_program_compiles(root: Path, tmp_path: Path) -> None:
    java, program = _java(tmp_path)
    done = subprocess.run([java, program, root / "ledger.duckdb"], capture_output=True, text=True, check=False)
    assert "No suitable driver found for jdbc:duckdb:" in done.stderr


def test_java_reads_through_jdbc(root: Path, tmp_path: Path) -> None:
    java, program = _java(tmp_path)
    if (jar := os.environ.get(JAR)) is None:
        pytest.skip(f"needs DuckDB's JDBC driver: name its jar in {JAR}")
    command = [java, "-cp", jar, program, root / "ledger.duckdb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
