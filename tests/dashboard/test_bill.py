from __future__ import annotations

import csv
import io
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from dashboard import files
from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.export import bill as exported
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "ledger"
BOOK = pricebook.load("example")


def files_offered(app: Any) -> list[str]:
    """Labels of the files of the page, without the rows of each table."""
    return [button.label for button in app.get("download_button") if button.label != "Rows as CSV"]


def nano(table: Any) -> list[int]:
    return [int(cell) for cell in table["nano-dollars"]]


@pytest.fixture(scope="module")
def total(ended: Path) -> int:
    return charges.price(ended, BOOK).total_nano


def test_every_figure_re_adds_to_the_charges(
    ended: Path, open_page: Any, values: Any, page_text: Any, choose: Any, total: int
) -> None:
    app = open_page(ended, "bill")
    assert values(app)["The bill"] == format_usd(total)
    assert "Price book example" in page_text(app)
    teams = dict(zip(app.dataframe[0].value["team"], nano(app.dataframe[0].value), strict=True))
    assert teams.pop("sum") == sum(teams.values()) == total
    assert set(teams) == {"research", "chat", "unallocated"}
    for by in ("bucket", "fate of the tokens", "policy version"):
        app = choose(app, "Divided by", by)
        *parts, whole = nano(app.dataframe[1].value)
        assert sum(parts) == whole == total
    app = choose(app, "Team", "research")
    *parts, whole = nano(app.dataframe[1].value)
    assert sum(parts) == whole == teams["research"]
    app = choose(app, "View", "fully-loaded")
    assert values(app)["The bill"] == format_usd(total)
    assert nano(app.dataframe[0].value)[-1] == total
    assert "fully loaded" in page_text(app)
    assert app.get("vega_lite_chart")


@pytest.mark.long
def test_the_sample_ledger_has_a_bill(tmp_path: Path, open_page: Any) -> None:
    if not SAMPLE.exists():
        pytest.skip("sample_traces/ledger is not recorded yet; CONTRIBUTING.md says how")
    app = open_page(shutil.copytree(SAMPLE, tmp_path / "ledger"), "bill")
    assert not app.exception
    assert not app.error
    *teams, whole = nano(app.dataframe[0].value)
    assert sum(teams) == whole > 0
    assert nano(app.dataframe[1].value)[-1] == whole


@pytest.mark.long
def test_a_period_is_all_some_days_or_a_month_perhaps_without_data(
    ended: Path, open_page: Any, values: Any, choose: Any, total: int
) -> None:
    app = open_page(ended, "bill")
    app = choose(app, "Period, UTC", "all")
    assert values(app)["The bill"] == format_usd(total)
    app = open_page(ended, "bill", period="2026-06-01..2026-06-02")
    assert values(app)["The bill"] == format_usd(total)
    app = open_page(ended, "bill", period="2026-06-02..2026-06-03")
    assert "No run lies in 2026-06-02 to 2026-06-03" in app.info[0].value
    assert not app.error
    app = choose(app, "Period, UTC", "this-month")
    assert "No run lies in" in app.info[0].value
    assert not app.metric


@pytest.mark.long
def test_no_bill_is_of_different_provenance(
    ended: Path, tmp_path: Path, open_page: Any, values: Any, choose: Any, kit: Any, total: int
) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    live = [kit.started("measured", after_s=3600), *kit.joined(), *kit.slices(0), *kit.left(30)]
    kit.write(root, live, writer="other", run_id="measured", provenance="live")
    app = open_page(root, "bill")
    assert not app.exception
    assert "live and simulated" in app.error[0].value
    assert not app.metric
    app = choose(app, "Provenance", "simulated")
    assert values(app)["The bill"] == format_usd(total)
    assert any("SIMULATED" in warning.value for warning in app.warning)
    app = choose(app, "Provenance", "live")
    assert values(app)["The bill"] == format_usd(charges.price(root, BOOK, provenance="live").total_nano)
    assert not any("SIMULATED" in warning.value for warning in app.warning)


def test_a_bill_of_a_ledger_that_does_not_verify_is_marked(
    ended: Path, tmp_path: Path, open_page: Any, values: Any, page_text: Any, total: int
) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    (root / "heads" / "gone.json").write_text('{"segment": "live/gone/000000/000001-' + "0" * 64 + '.parquet"}')
    app = open_page(root, "bill")
    assert not app.exception
    assert all("does not verify" in error.value for error in app.error)
    assert not app.metric
    app.checkbox[0].check().run()
    assert any("UNVERIFIED" in warning.value for warning in app.warning)
    assert values(app)["The bill"] == format_usd(total)
    assert "UNVERIFIED LEDGER: do not rely" in page_text(app)


def test_an_error_of_the_price_book_gets_no_checkbox(
    ended: Path, tmp_path: Path, open_page: Any, page_text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "book.toml"
    book.write_text(BOOK.text.replace('class = "h100-sxm"', 'class = "h300"'))
    monkeypatch.setenv("ROSE_PRICE_BOOK", str(book))
    app = open_page(ended, "bill")
    assert not app.exception
    assert "h100-sxm" in page_text(app)
    assert not app.checkbox
    assert not app.metric
    # Corrected while the page is open.
    book.write_text(BOOK.text)
    assert app.run().metric


@pytest.mark.long
def test_a_bill_grows_with_the_run(tmp_path: Path, open_page: Any, values: Any, kit: Any) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "live", "run", "live", flush_interval_s=0.05) as ledger:

        def record(made: list[events.Event]) -> None:
            for event in made:
                ledger.record(event, durable=False)
            ledger.flush()

        record([kit.started()])
        app = open_page(root, "bill")
        assert "nothing is charged" in app.info[0].value
        record([*kit.joined(), *kit.slices(0)])
        before = values(app.run())["The bill"]
        record(kit.slices(1))
        assert values(app.run())["The bill"] != before
        assert not app.exception


@pytest.mark.long
def test_files_are_made_when_asked_for_and_hold_the_bill(ended: Path, open_page: Any, total: int) -> None:
    app = open_page(ended, "bill")
    assert files_offered(app) == ["Download charges (CSV)"]
    (button,) = [button for button in app.button if button.label == "Prepare FOCUS, CSV"]
    app = button.click().run()
    assert not app.exception
    assert not app.error
    names = [name.replace("\\", "") for name in files_offered(app)]
    assert names == ["Download charges (CSV)", "Download rose-simulated-2026-06-focus.csv"]
    _, made = app.session_state["file"]
    rows = csv.DictReader(io.StringIO(made.value.content.decode()))
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) == Decimal(total).scaleb(-9)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["workbook", "FOCUS, Parquet"])
def test_each_kind_of_file_is_made_in_memory(kind: str, ended: Path) -> None:
    made = files.make(kind, "rose", lambda: exported.of_period(ended, BOOK))
    assert made.name == f"rose{files.KINDS[kind].ending}"
    if kind == "workbook":
        assert openpyxl.load_workbook(io.BytesIO(made.content)).sheetnames
    else:
        assert made.content.startswith(b"PAR1")
