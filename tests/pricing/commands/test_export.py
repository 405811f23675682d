import hashlib
from pathlib import Path

import openpyxl
import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, CLOSE_ID, begun, ended, judged, slice_, turn, write
from tests.pricing.conftest import data, refused, rose, succeeded

HOUR = ["--period", "2026-06-01T00"]


def test_focus_of_a_period_and_a_run(sample_kept: Path, tmp_path: Path) -> None:
    for name, scope in (("a.parquet", HOUR), ("b.csv", ["--run", "run"])):
        result = rose("export", *scope, "--out", tmp_path / name, "--json", ledger=sample_kept)
        done = data(result)
        assert result.stderr.startswith("Ledger verified until ")
        assert done["path"] == str(tmp_path / name)
        assert done["totals"]["billed"] == done["totals"]["effective"] == 4_740_000_000
        assert done["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert done["rows"] == 19
    # One purchase, and each charge but the tokens that the preemption threw away: they have no time and no cost.
    frame = charges.price(Ledger(sample_kept), pricebook.load("example")).frame
    unpriced = frame.filter(~pl.any_horizontal(pl.col("ns", "bytes", "energy_mw_ns", "cost_nano") != 0))
    assert unpriced.select("lease_id", "fate", "cause", "tokens").rows() == [("L2", "lost", "preempted", 100)]
    assert frame.height - unpriced.height + 1 == 19


def test_a_close_and_its_hour_are_exported_as_they_were_closed(closed_kept: Path, tmp_path: Path) -> None:
    for name, scope in (("a.parquet", ["--close", CLOSE_ID]), ("b.parquet", HOUR), ("c.xlsx", HOUR)):
        printed = succeeded(rose("export", *scope, "--out", tmp_path / name, ledger=closed_kept))
        assert "$3.87" in printed
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in printed
    rows = [pl.read_parquet(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    assert rows[0].equals(rows[1])
    assert rows[0]["InvoiceId"].unique().to_list() == [CLOSE_ID]
    assert int(rows[0]["BilledCost"].sum() * 10**9) == BILL_NANO
    assert "By team" in openpyxl.load_workbook(tmp_path / "c.xlsx").sheetnames


def test_tokens_of_a_device_that_joined_no_run_are_exported_without_a_price(tmp_path: Path) -> None:
    stray = [turn("t9", 2000, 50, device_id="stray", lease_id=None), *judged("t9", 2500, accepted=True)]
    root = write(tmp_path / "ledger", [*begun(), slice_(0, serving=3600), *stray, *ended(3600)])
    (tmp_path / "book.toml").write_text(BOOK_TOML)
    for name in ("a.xlsx", "a.parquet"):
        succeeded(rose("export", *HOUR, "--out", tmp_path / name, "-b", tmp_path / "book.toml", ledger=root))
    assert "stray" not in pl.read_parquet(tmp_path / "a.parquet")["ResourceName"].to_list()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*HOUR, "--out", "f.txt"], "must end in .csv or .parquet or .xlsx"),
        ([*HOUR, "--out", "there.csv"], "there.csv exists"),
        (["--close", "c", "--run", "run", "--out", "f.csv"], "give one of --close, --run"),
        (["--close", "c", "-b", "example", "--out", "f.xlsx"], "leave out --provenance and --price-book"),
        (["--close", "c", "--out", "f.xlsx"], "unknown close 'c'"),
        (["--period", "2027-01-01", "--out", "f.csv"], "nothing is charged"),
        ([*HOUR, "-b", "nowhere.toml", "--out", "f.csv"], "cannot read price book nowhere.toml"),
    ],
)
def test_what_cannot_be_done_is_named(
    sample_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("mine")
    refused(rose("export", *arguments, ledger=sample_kept), says)
    assert not list(tmp_path.glob("f.*"))
    assert Path("there.csv").read_text() == "mine"
