from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ledger import scale, traffic
from rose.ledger import rows
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.price_books import pricebook

ROOT = Path(__file__).parents[2]


def test_the_made_up_events_are_events():
    table = traffic.batch(0, 2000, np.random.default_rng(0))
    assert rows.checked(table).num_rows == 2000
    assert set(table["kind"].to_pylist()) == set(traffic.MIX)
    assert set(table["provenance"].to_pylist()) == {"simulated"}


def test_the_made_up_events_can_be_priced(tmp_path):
    rng = np.random.default_rng(0)
    with LedgerWriter.open(tmp_path / "ledger", "w", "r", "simulated") as writer:
        traffic.begin(writer.record)
        for first in (0, 1000):
            writer.append(traffic.batch(first, 1000, rng))
    charged = charges.price(tmp_path / "ledger", pricebook.load("example"))
    assert charged.total_nano > 0
    assert charged.frame.filter(bucket="rollout")["ns"].sum() > 0


def test_pages_of_the_dashboard_can_be_timed(tmp_path):
    scale.fill(tmp_path / "ledger", 4 * scale.BATCH)
    assert all(scale.page_s(tmp_path / "ledger", name) > 0 for name in scale.ROLLUPS)


@pytest.mark.long
def test_the_benchmark_measures_and_writes_its_claims(tmp_path):
    command = [sys.executable, "-m", "benchmarks.ledger", "--quick", "--only", "record", "--only", "fleet"]
    command += ["--only", "receipt"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    claims = json.loads((tmp_path / "report.json").read_text())["claims"]
    names = {claim["name"] for claim in claims}
    assert {"durable record(), p50", "rose ledger receipt"} <= names
    assert all(claim["value"] > 0 for claim in claims)
    assert not list(tmp_path.glob("ledger-benchmark-*")), "its ledgers are removed"


@pytest.mark.long
def test_nothing_acknowledged_is_hidden_when_writers_are_killed_on_a_disk_that_fills(tmp_path):
    command = [sys.executable, "-m", "benchmarks.ledger", "--quick", "--only", "full_disk"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    if isinstance(report["detail"]["full_disk"], str):
        pytest.skip(report["detail"]["full_disk"])
    assert report["detail"]["full_disk"]["acknowledged"] > 0
    assert all(claim["value"] == 0 for claim in report["claims"]), done.stderr


@pytest.mark.long
def test_no_hostile_statement_gets_through_on_the_folder_or_at_a_gateway(tmp_path):
    command = [sys.executable, "-m", "benchmarks.ledger", "--quick", "--only", "hostile"]
    command += ["--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    through, changed, unlogged, _ = report["claims"]
    assert (through["value"], changed["value"], unlogged["value"]) == (0, 0, 0), report["detail"]["hostile"]
    assert report["detail"]["hostile"]["statements"] >= 290
    assert report["detail"]["hostile"]["tried_through_the_door"] >= 10
