from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coverage import __main__ as coverage
from benchmarks.coverage import holdouts
from benchmarks.coverage.shown import Shown
from rose.accept.report import Report
from rose.pricing.borrowing import harm
from tests.long_form import usual


@pytest.mark.long
def test_the_quick_form_shows_every_case_and_no_dishonest_interval(tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    ledgers = usual(1, long=12)
    coverage.main(["--quick", "--ledgers", str(ledgers), "--json", str(file)])
    report = json.loads(file.read_text())
    assert (report["quick"], report["provenance"]) == (True, "simulated")
    # So few ledgers claim nothing about coverage.
    assert {claim["name"] for claim in report["claims"]} == {
        *(f"{case}: intervals shown where none is honest" for case in coverage.CASES),
        "reports of ledgers on disk that show the same intervals",
    }
    assert all(claim["holds"] for claim in report["claims"])
    told = report["detail"]
    assert {figure["case"] for name, figure in told.items() if name != coverage.ON_DISK} == set(coverage.CASES)
    assert told["energy, assumed, no range in the book"]["shown"] == 0
    assert told["forecast, independent days, 14 known"]["not_shown_because"].startswith("not enough days")
    assert told["alpha"]["shown"] == ledgers


def test_a_claim_takes_enough_ledgers_and_names_what_is_off() -> None:
    report = Report("coverage", quick=False, provenance="simulated")
    good = [Shown("good", 1.0, 0.0, 2.0 if n % 20 else 0.5) for n in range(300)]
    narrow = [Shown("narrow", 1.0, 0.0, 2.0 if n % 5 else 0.5) for n in range(300)]
    few = [Shown("few", 1.0, 0.0, 0.5) for _ in range(299)]
    never = [Shown("never", 1.0, 0.0, 2.0, never=True)]
    coverage._claim(report, "case", [*good, *narrow, *few, *never])
    assert {claim.name: (claim.value, claim.holds) for claim in report.claims} == {
        "good: coverage away from 95%": (0, True),
        "narrow: coverage away from 95%": (pytest.approx(15), False),
        "case: intervals shown where none is honest": (1, False),
    }


def test_what_a_lease_leaves_behind_is_seen_against_withheld_windows_alone() -> None:
    """A miss revokes the lease, and lending is felt for 40 s after it: unlent time is no time without lending."""
    served = holdouts.serve(np.random.default_rng(3), holdouts.Fleet(lasts_s=40), 0)
    truth_usd = int((served.cost - served.cost_alone).sum()) / 1e9
    missed_usd = int((served.missed - (served.cost_alone == holdouts.MISS_NANO)).sum()) * holdouts.MISS_NANO / 1e9
    unlent = holdouts.by_unlent_time([served])
    assert float(unlent.usd) < missed_usd / 2
    assert (unlent.interval, unlent.explained.startswith("confounded")) == (None, True)
    measured = harm.realised(holdouts.measured([served]), holdouts.STRETCHES, holdouts.BOOK)
    assert measured.interval is not None
    assert measured.interval.holds(truth_usd)
    assert float(measured.usd) > missed_usd / 2
