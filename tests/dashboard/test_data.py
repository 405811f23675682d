import gc
import subprocess
import sys
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import dashboard
from dashboard import charts, data
from dashboard.data import Window
from rose import events
from rose.events import BUCKETS
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.price_books import pricebook
from tests.ledger.conftest import record

DRAWN = {"device_states": "idle", "latency": "requests", "preemptions": "preemptions"}


@pytest.fixture
def run(ended: Path) -> data.Run:
    (run,) = data.runs(Ledger(ended))
    return run


def drawn(ledger: Path, query: str, window: Window) -> pl.DataFrame:
    whole = {"from_ns": window.from_ns, "to_ns": window.to_ns, "blocks": 200}
    return data.rows(Ledger(ledger), f"dashboard/{query}", run_id="run", **whole)


def test_bins_lose_nothing_are_few_and_two_windows_are_the_whole(ended: Path, run: data.Run) -> None:
    states, latency = (drawn(ended, query, run.whole) for query in ("device_states", "latency"))
    frame = charges.price(Ledger(ended), pricebook.load("example")).frame
    charged = dict(frame.filter(kind="capacity").group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    for bucket in BUCKETS:
        assert states[bucket].sum() == charged.get(bucket, 0)
    assert states.group_by("lane").agg(pl.col("bin").n_unique())["bin"].max() <= 200
    assert states["lent"].sum() == 8 * 23 * 10**9
    assert (latency["requests"].sum(), latency["kept"].sum()) == (240, 232)
    shown = charts.most_of_each_bin(states)
    shares = shown.select(pl.sum_horizontal(f"{bucket}_share" for bucket in BUCKETS)).to_series()
    assert shares.to_list() == pytest.approx([1.0] * len(shares))
    assert set(shown.filter(lane="t0")["state"]) == {"idle", "train"}
    middle_ns = (run.whole.from_ns + run.whole.to_ns) // 2
    for query, amount in DRAWN.items():
        parts = (Window(run.whole.from_ns, middle_ns), Window(middle_ns, run.whole.to_ns))
        summed = sum(int(drawn(ended, query, part)[amount].sum()) for part in parts)
        assert summed == drawn(ended, query, run.whole)[amount].sum() > 0


@pytest.mark.parametrize(
    ("expires_s", "allowed_s"),
    [(None, data.UNKNOWN_S), (60.0, data.LEAST_S), (7200.0, 7200)],
    ids=["unknown", "short", "long"],
)
def test_a_live_run_may_be_silent_for_as_long_as_it_says(
    run: data.Run, expires_s: float | None, allowed_s: int
) -> None:
    live = replace(run, status="running", provenances=["live"], expires_s=expires_s)
    for after_s, goes_on in ((allowed_s - 60, True), (allowed_s + 1, False)):
        heard_at = datetime.now(UTC) - timedelta(seconds=after_s)
        assert replace(live, heard_at=heard_at).going_on is goes_on
        assert not replace(live, heard_at=heard_at, status="ended").going_on
        assert replace(live, heard_at=heard_at, provenances=["replay"]).going_on


def test_an_open_lease_is_drawn_to_its_expiry_or_the_newest_event(tmp_path: Path, kit: Any) -> None:
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *kit.lease_with_time(0, 10)])
    (lease,) = data.rows(Ledger(root), "dashboard/leases", run_id="run", from_ns=kit.T0_NS, to_ns=2**62).to_dicts()
    assert (lease["closed_by"], lease["leases"]) == ("open", 1)
    assert lease["seconds"] == pytest.approx(0)


def test_harvest_is_what_rollouts_took_of_the_time_that_serving_left(ended: Path) -> None:
    frame = charges.price(Ledger(ended), pricebook.load("example")).frame
    own = frame.filter(pl.col("pool") == "serving", pl.col("kind") == "capacity")
    ns = dict(own.group_by("bucket").agg(pl.col("ns").sum()).iter_rows())
    share = data.harvest(frame)
    assert share is not None
    assert float(share) == pytest.approx(ns["rollout"] / (ns["rollout"] + ns["headroom"] + ns["idle"]))
    assert data.harvest(frame.filter(pool="train")) is None
    beyond_s = 10
    alone = (ns["rollout"], ns["rollout"] + ns["headroom"] + ns["idle"] + beyond_s * 10**9)
    assert data.harvest(frame, beyond_s * 10**9) == Fraction(*map(int, alone))
    # Serving alone takes no less than nothing.
    assert data.harvest(frame, 2**62) == data.harvest(frame, int(ns["serving"]))


def test_work_beside_serving_counts_in_the_period_where_its_slice_begins(tmp_path: Path, kit: Any) -> None:
    beside = {"beside_ns": 3 * kit.S // 10, "beside_work_ns": kit.S // 10, "delayed_ns": kit.S // 4}
    slices = [replace(one, **beside) for one in kit.slices(0)[:9] if one.device_id == "s0"]
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *slices])
    window = {"from_ns": kit.T0_NS + kit.S, "to_ns": kit.T0_NS + 60 * kit.S, "provenance": "simulated"}
    assert data.rows(Ledger(root), "dashboard/serving_time", **window)["delayed_ns"].to_list() == [2 * 3 * kit.S // 20]
    other = data.rows(Ledger(root), "dashboard/serving_time", **{**window, "provenance": "live"})
    assert other.row(0) == (0, 0)


def test_columns_of_a_named_query_are_in_milliseconds_or_seconds(ended: Path) -> None:
    lives = data.named_rows(Ledger(ended), "preemption_latency", "action latency_max_ns", run_id="run")
    assert lives.columns == ["action", "latency_max (ms)"]
    assert lives.filter(action="yield")["latency_max (ms)"].to_list() == [4.0]
    assert data.named_rows(Ledger(ended), "device_time_by_bucket_and_day", "device_id ns").columns == [
        "device_id",
        "ns",
    ]
    for _ in range(2):
        with pytest.raises(data.ReadError, match="nobody"):
            data.named_rows(Ledger(ended), "preemption_latency", run_id="nobody")


def test_a_writer_behind_for_days_is_shown_in_days(tmp_path: Path, kit: Any) -> None:
    root = kit.write(tmp_path / "ledger", [kit.started()], writer="first")
    kit.write(root, kit.joined(after_s=3 * 86_400 / 2), writer="second")
    behind = data.named_rows(Ledger(root), "late_writers", "writer behind_ns")
    assert dict(behind.rows()) == {"first": 1.5, "second": 0.0}
    assert behind.columns == ["writer", "behind (days)"]


def test_rows_are_read_again_only_after_a_new_event(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "run", "live") as ledger:
        ledger.record(events.Run(action="started", name="first"))
        assert data.closes(Ledger(root)) is data.closes(Ledger(root))
        before = data.mark(Ledger(root))
        assert data.mark(Ledger(root)) == before
        ledger.record(events.Run(action="ended", name="first"))
        assert data.mark(Ledger(root)) != before
        assert [run.status for run in data.runs(Ledger(root))] == ["ended"]


class Made:
    """Something that takes memory."""


def test_what_was_kept_of_an_older_state_of_the_ledger_is_let_go(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    kept: list[tuple[int, weakref.ref[Made]]] = []
    with LedgerWriter.open(root, "w", "run", "live") as ledger:
        for head in range(4):
            ledger.record(events.Run(action="started", name=f"{head}"))
            # A key that no later state asks for again, as the window of a run that goes on.
            value = data.kept(Made, Ledger(root), "made", head)
            assert value is data.kept(Made, Ledger(root), "made", head)
            kept.append((head, weakref.ref(value)))
            del value
    gc.collect()
    assert [head for head, value in kept if value() is not None] == [3]


def test_a_page_prices_by_the_book_of_every_command_or_says_why_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = record(tmp_path / "ledger", events.Run(action="started", name="first"))
    (run,) = data.runs(Ledger(root))
    book = data.price_book(Ledger(root), run)
    assert (book.name, book.chosen) == ("example", "from ROSE_PRICE_BOOK")
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    with pytest.raises(data.ReadError, match="No price book"):
        data.price_book(Ledger(root), run)


def test_what_is_called_none_is_not_nothing(tmp_path: Path) -> None:
    root = layout.create(tmp_path / "ledger")
    assert data.kept(lambda: "of every team", Ledger(root), "spent", None) == "of every team"
    assert data.kept(lambda: "of the team None", Ledger(root), "spent", "None") == "of the team None"


def test_importing_the_package_loads_no_streamlit() -> None:
    code = "import sys, dashboard; sys.exit('streamlit' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_named_ledger_is_shown_else_that_of_the_folder_else_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = tmp_path / "installed" / "sample_traces"
    monkeypatch.setattr(dashboard.resources, "files", lambda _: sample)
    with pytest.raises(LedgerError, match="there is no ledger"):
        dashboard.ledger_to_show(None)
    layout.create(sample / "ledger")
    assert dashboard.ledger_to_show(None) == sample / "ledger"
    here, named = layout.create(tmp_path / "ledger"), layout.create(tmp_path / "named")
    assert dashboard.ledger_to_show(None) == here
    assert dashboard.ledger_to_show(named) == named
    with pytest.raises(LedgerError, match="is not a ledger"):
        dashboard.ledger_to_show(tmp_path / "other")
