from __future__ import annotations

import csv
import uuid
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.events import Run
from rose.ledger import catalog
from rose.ledger.growth import export as exporting
from rose.ledger.growth.export import export
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter

HOUR_US = 3_600_000_000
FIRST_US = 1_780_000_000_000_000


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    """Two runs of five leases each, an hour apart."""
    root = tmp_path_factory.mktemp("exported") / "ledger"
    for run in ("first", "second"):
        with LedgerWriter.open(root, run, run) as writer:
            writer.record(Run(at_us=FIRST_US, action="started", name='comma, "quote"\nline'))
            for n in range(5):
                writer.record(lease(at_us=FIRST_US + n * HOUR_US + 1, lease_id=f"{run}-{n}"))
    return root


@pytest.fixture(scope="module")
def wanted(root: Path) -> dict[str, tuple[int, list[str]]]:
    """Rows and columns of each view."""
    with catalog.connect(root) as connection:
        relations = {view: connection.sql(f"FROM {view}") for view in catalog.VIEWS}
        return {view: (len(relation.fetchall()), relation.columns) for view, relation in relations.items()}


def _read(path: Path) -> pl.DataFrame:
    match path.suffix:
        case ".parquet":
            return pl.read_parquet(path)
        case ".arrow":
            return pl.read_ipc(path)
        case _:
            return pl.read_csv(path, try_parse_dates=True)


@pytest.mark.long
@pytest.mark.parametrize("format", ["parquet", "csv", "arrow"])
def test_every_view_comes_out_as_it_is(
    root: Path, wanted: dict[str, tuple[int, list[str]]], tmp_path: Path, format: str
) -> None:
    files = export(root, str(tmp_path / "out"), format=format)
    assert [file.view for file in files] == list(catalog.VIEWS)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(f"{v}.{format}" for v in catalog.VIEWS)
    for file in files:
        path = Path(file.file.removeprefix("file://"))
        assert file.bytes == path.stat().st_size
        found = _read(path)
        columns = wanted[file.view][1]
        assert (file.rows, found.columns) == (found.height, columns), file.view
        assert file.rows == wanted[file.view][0]
    with catalog.connect(root) as connection:
        leases = _read(tmp_path / "out" / f"lease.{format}").sort("lease_id")
        expected = connection.sql("SELECT lease_id, event_time FROM lease ORDER BY lease_id").fetchall()
    times = leases["event_time"].cast(pl.Datetime("us", "UTC")).to_list()
    assert list(zip(leases["lease_id"], times, strict=True)) == [
        (name, at.replace(tzinfo=UTC)) for name, at in expected
    ]


def test_csv_says_that_its_times_are_utc(root: Path, tmp_path: Path) -> None:
    export(root, str(tmp_path), format="csv", views=["run"], run_id="first")
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["event_time"] == f"{datetime.fromtimestamp(FIRST_US / 1e6, UTC):%Y-%m-%d %H:%M:%S.%f}Z"
    assert row["name"] == 'comma, "quote"\nline'
    assert row["ended_at"] == ""


def test_what_the_columns_mean_goes_along(root: Path, tmp_path: Path) -> None:
    for format in ("parquet", "arrow"):
        export(root, str(tmp_path), format=format, views=["lease"])
    with pa.ipc.open_file(tmp_path / "lease.arrow") as file:
        for schema in (pq.read_schema(tmp_path / "lease.parquet"), file.schema):
            assert schema.metadata[b"comment"].startswith(b"One row for each lease")
            assert schema.metadata[b"rose.verified"] == b"never verified; run `rose ledger verify`"
            assert b"UTC" in schema.field("closed_at").metadata[b"comment"]
            assert schema.field("lease_id").metadata[b"comment"] == b"The lease it belongs to."
            assert schema.field("event_time").type == pa.timestamp("us", "UTC")
    assert pq.ParquetFile(tmp_path / "lease.parquet").metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.long
def test_rows_of_a_run_and_of_a_period(root: Path, tmp_path: Path) -> None:
    def leases(**wanted: Any) -> int:
        (file,) = export(root, str(tmp_path), views=["lease"], overwrite=True, **wanted)
        return file.rows

    first = datetime.fromtimestamp(FIRST_US / 1e6, UTC)
    assert leases() == 10
    assert leases(run_id="second") == 5
    assert leases(since=first + timedelta(hours=2)) == 6
    assert leases(since=first, until=first + timedelta(hours=2), run_id="first") == 2
    assert leases(until=(first + timedelta(hours=2)).replace(tzinfo=None)) == 4, "without a zone it is UTC"
    assert leases(until=(first + timedelta(hours=2)).astimezone(timezone(timedelta(hours=5)))) == 4
    assert leases(run_id="nobody's") == 0
    (days,) = export(root, str(tmp_path), views=["daily_lease"], since=first + timedelta(days=2))
    assert days.rows == 0


def test_a_file_that_is_there_is_refused_before_anything_is_written(root: Path, tmp_path: Path) -> None:
    (tmp_path / "run.parquet").write_text("mine")
    with pytest.raises(LedgerError, match=r"run\.parquet exists.*--overwrite"):
        export(root, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["run.parquet"]
    export(root, str(tmp_path), views=["run"], overwrite=True)
    assert pl.read_parquet(tmp_path / "run.parquet").height == 2


@pytest.mark.parametrize(
    ("wanted", "says"),
    [({"views": ["leases"]}, "'leases' is not a view"), ({"format": "xlsx"}, "format must be one of")],
)
def test_what_there_is_not_is_refused(root: Path, tmp_path: Path, wanted: Any, says: str) -> None:
    with pytest.raises(LedgerError, match=says):
        export(root, str(tmp_path / "out"), **wanted)
    assert not (tmp_path / "out").exists()


def test_a_failure_leaves_nothing_half_written(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(exporting._WRITERS, "arrow", full)
    with pytest.raises(LedgerError, match="No space left"):
        export(root, str(tmp_path), format="arrow")
    assert list(tmp_path.iterdir()) == []


def test_to_a_url(root: Path) -> None:
    url = f"memory:///{uuid.uuid4().hex}"
    (file,) = export(root, url, views=["lease"], run_id="first")
    assert file.file == f"{url}/lease.parquet"
    with fsspec.open(file.file) as content:
        assert pl.read_parquet(content.read()).height == 5
    with pytest.raises(LedgerError, match="exists"):
        export(root, url, views=["lease"])
