from __future__ import annotations

import hashlib
import json
from pathlib import Path

import openpyxl
import polars as pl
import pytest
import typer
from typer.testing import CliRunner, Result

from rose.pricing import charges
from rose.pricing.closing import close as closing
from rose.pricing.closing.period import Period
from rose.pricing.commands.export import export_app
from tests.pricing.closing.conftest import begun, ended, fleet_events, judged, slice_, turn, write
from tests.pricing.conftest import OURS

app = typer.Typer()
app.add_typer(export_app, name="export")
HOUR = ["--from", "2026-06-01", "--to", "2026-06-01T01"]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def words(result: Result) -> str:
    return " ".join(result.output.split())


@pytest.fixture
def close_id(sample: Path) -> str:
    begin = 1_780_272_000 * 10**9  # 2026-06-01
    hour = Period(begin, begin + 3600 * 10**9)
    return closing.close(sample, hour, OURS, with_open_runs=True).close_id


def test_focus_of_a_period_a_run_and_a_close(sample: Path, close_id: str, tmp_path: Path) -> None:
    for name, scope in (("a.parquet", HOUR), ("b.csv", ["--run", "run"]), ("c.parquet", ["--close", close_id])):
        result = run("focus", "--ledger", sample, *scope, "--out", tmp_path / name, "--json")
        assert result.exit_code == 0, result.output
        done = json.loads(result.stdout)
        assert result.stderr.startswith("Ledger verified until ")
        assert done["path"] == str(tmp_path / name)
        assert done["totals"]["billed"] == done["totals"]["effective"] == 4_740_000_000
        assert done["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        assert done["rows"] == 19
        assert run("check", tmp_path / name).exit_code == 0
    assert pl.read_parquet(tmp_path / "c.parquet")["InvoiceId"].unique().to_list() == [close_id]
    # One purchase, and each charge but the tokens that the preemption threw away: they have no time and no cost.
    frame = charges.price(sample, OURS).frame
    unpriced = frame.filter(~pl.any_horizontal(pl.col("ns", "bytes", "energy_mw_ns", "cost_nano") != 0))
    assert unpriced.select("lease_id", "fate", "cause", "tokens").rows() == [("L2", "lost", "preempted", 100)]
    assert frame.height - unpriced.height + 1 == 19
    compared = run("check", tmp_path / "c.parquet", "--ledger", sample, "--close", close_id)
    assert "$4.74 billed: good" in words(compared)


def test_check_names_what_is_wrong_and_exits_1(sample_kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    assert run("focus", "--ledger", sample_kept, *HOUR, "-o", path).exit_code == 0
    path.write_text(path.read_text().replace("Recurring", "Weekly"))
    result = run("check", path)
    assert result.exit_code == 1
    assert "f.csv, row 1: ChargeFrequency must be Recurring" in words(result)
    as_json = run("check", path, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.output)["faults"][0]["first"] == [1]


@pytest.mark.parametrize("lent", [True, False])
def test_tokens_of_a_device_that_joined_no_run_are_exported_without_a_price(tmp_path: Path, lent: bool) -> None:
    stray = [turn("t9", 2000, 50, device_id="stray", lease_id=None), *judged("t9", 2500, accepted=True)]
    made = fleet_events() if lent else [*begun(), slice_(0, serving=3600), *ended(3600)]
    root = write(tmp_path / "ledger", [*made[:-2], *stray, *made[-2:]])
    (tmp_path / "book.toml").write_text(OURS.text)
    for command, name in (("workbook", "a.xlsx"), ("focus", "a.parquet"), ("focus", "a.csv")):
        out = tmp_path / name
        done = run(command, "--ledger", root, *HOUR, "--out", out, "--price-book", tmp_path / "book.toml")
        assert done.exit_code == 0, done.output
    rows = pl.read_parquet(tmp_path / "a.parquet")
    assert "stray" not in rows["ResourceName"].to_list()
    assert run("check", tmp_path / "a.csv").exit_code == 0


def test_a_workbook_of_a_period_and_of_a_close(sample: Path, close_id: str, tmp_path: Path) -> None:
    for name, scope in (("hour.xlsx", HOUR), ("close.xlsx", ["--close", close_id])):
        result = run("workbook", "--ledger", sample, *scope, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert "bill $4.74" in words(result)
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in words(result)
        assert "By team" in openpyxl.load_workbook(tmp_path / name).sheetnames


def test_a_file_is_replaced_only_when_forced(sample_kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("mine")
    refused = run("focus", "--ledger", sample_kept, *HOUR, "--out", path)
    assert refused.exit_code == 2
    assert "--force" in words(refused)
    assert path.read_text() == "mine"
    assert run("focus", "--ledger", sample_kept, *HOUR, "--out", path, "--force").exit_code == 0
    assert path.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["focus", *HOUR, "--out", "f.txt"], "FOCUS is written as .csv or .parquet"),
        (["workbook", *HOUR, "--out", "f.csv"], "a workbook is written as .xlsx"),
        (["focus", "--out", "f.csv"], "say what to export"),
        (["focus", "--close", "c", "--run", "run", "--out", "f.csv"], "leave out --run"),
        (["workbook", "--close", "c", "-b", "example", "--out", "f.xlsx"], "leave out --price-book"),
        (["workbook", "--close", "c", "--out", "f.xlsx"], "there is no close 'c'"),
        (["focus", "--from", "2026-06-01T00:30", "--out", "f.csv"], "is not a whole hour"),
        (["focus", "--from", "2027-01-01", "--out", "f.csv"], "nothing can be priced"),
        (["focus", *HOUR, "-b", "nowhere.toml", "--out", "f.csv"], "cannot read price book nowhere.toml"),
        (["check", "f.csv"], "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_named(
    sample_kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROSE_LEDGER", str(sample_kept))
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert says in words(result)
    assert not list(tmp_path.glob("f.*"))
