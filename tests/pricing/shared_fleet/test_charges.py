"""Two RL runs of two teams on one fleet: each is charged its own, and with the fleet's own that is the bill."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from rose import events
from rose.cli import app
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.audit.explain import ChargeQuestion, explain
from tests.pricing.closing.conftest import T0_NS, S, us
from tests.pricing.shared_fleet.ledger import BOOK, joined, slice_


def _sums(frame: pl.DataFrame, *by: str) -> dict[Any, int]:
    summed = frame.filter(kind="capacity").group_by(*by).agg(pl.col("ns").sum())
    return {key[0] if len(by) == 1 else (*key,): ns // S for *key, ns in summed.iter_rows()}


@pytest.fixture(scope="module")
def frame(root: Path) -> pl.DataFrame:
    return charges.price(Ledger(root), BOOK).frame


def test_each_run_has_its_own_time_and_the_fleet_the_rest(frame: pl.DataFrame) -> None:
    assert set(frame["fleet_run_id"]) == {"fleet"}
    assert _sums(frame, "run_id", "bucket") == {
        ("red", "rollout"): 700,
        ("red", "sync"): 50,
        ("red", "headroom"): 50,
        ("red", "train"): 1000,
        ("blue", "rollout"): 600,
        ("blue", "activation"): 100,
        ("blue", "train"): 300,
        ("fleet", "serving"): 1400,
        ("fleet", "idle"): 3000,
    }
    # Whose demand was refused is known, but it is for serving's sake that the device was kept free.
    assert _sums(frame, "team") == {"team red": 1750, "team blue": 1000, "chat": 2150, "infra": 2300}
    fates = frame.filter(bucket="rollout").select("run_id", "fate", "tokens").rows()
    assert sorted(fates) == [("blue", "rejected", 100), ("red", "accepted", 300)]
    assert _cost(frame.filter(kind="transfer"), "run_id") == {"red": 20_000_000, "blue": 20_000_000}


def _cost(frame: pl.DataFrame, by: str) -> dict[str, int]:
    return dict(frame.group_by(by).agg(pl.col("cost_nano").sum()).iter_rows())


def test_the_bills_of_the_runs_sum_to_the_fleets(root: Path, frame: pl.DataFrame) -> None:
    assert frame["cost_nano"].sum() == 2 * 3_600_000_000 + 40_000_000
    assert frame["cost_nano"].sum() == charges.price(Ledger(root), BOOK, run_id="fleet").total_nano
    assert _cost(frame, "run_id") == {"fleet": 4_400_000_000, "red": 1_820_000_000, "blue": 1_020_000_000}
    red = charges.price(Ledger(root), BOOK, run_id="red")
    assert red.frame.equals(frame.filter(run_id="red"))
    # An RL run is told what it had within its own hours, of devices that are the fleet's.
    assert {(stay.run_id, stay.device_id) for stay in red.stays} == {("fleet", "s0"), ("fleet", "t0")}


def test_every_charge_of_a_shared_device_re_adds_to_its_events(root: Path, frame: pl.DataFrame) -> None:
    told = explain(Ledger(root), ChargeQuestion(hour_ns=T0_NS, run_id="red", device_id="s0"), BOOK)
    assert told.faults == []
    assert told.amount.value == frame.filter(run_id="red", device_id="s0")["cost_nano"].sum()


def test_rose_cost_shows_each_its_own(root: Path) -> None:
    book = str(root.parent / "book.toml")
    command = ["cost", "--by", "run", "--by", "team", "--json", "--ledger", str(root), "--price-book", book]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {(line["run"], line["team"]): line["cost_nano"] / 10**9 for line in json.loads(done.stdout)["lines"]} == {
        ("fleet", "chat"): 2.10,
        ("fleet", "infra"): 2.30,
        ("red", "chat"): 0.05,
        ("red", "team red"): 1.77,
        ("blue", "team blue"): 1.02,
    }


def test_the_next_hour_of_the_same_lease_may_be_of_another_run(tmp_path: Path) -> None:
    """A slice that crosses the hour is cut, and what is left of each side is still the RL run's."""
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", at_us=us(0)))
        writer.record(joined())
        writer.record(slice_(3500, "s0", "red", "L", rollout=101, serving=99), durable=True)
    frame = charges.price(Ledger(root), BOOK).frame.filter(pl.col("bucket") != "unaccounted")
    sums = frame.group_by("run_id", "bucket").agg(pl.col("ns").sum()).sort("bucket").rows()
    assert sums == [("red", "rollout", 101 * S), ("fleet", "serving", 99 * S)]
    assert frame["hour"].n_unique() == 2
    assert frame.filter(run_id="red").height == 2
