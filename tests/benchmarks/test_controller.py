"""The controller's benchmark on next to nothing: its parts start, speak with one another, and end."""

from __future__ import annotations

from itertools import pairwise

import psutil
import pytest

from benchmarks.controller.__main__ import EVEN, RECORDED, Load, Size, measure
from benchmarks.controller.arrivals import even, recorded
from rose.accept.report import Report
from tests.long_form import usual


@pytest.mark.long
@pytest.mark.parametrize("arrivals", usual([RECORDED], long=[RECORDED, EVEN]))
def test_turns_go_through_and_are_counted(arrivals):
    before = psutil.Process().children(recursive=True)
    report = Report("controller", quick=True)
    load = Load(Size(8, 2), arrivals)
    measure(report, 0.2, 50, (load,), ways=("controller",))
    figures = report.detail[str(load)]["controller"]
    assert (figures["turns"], figures["failed"]) == (10, 0)
    assert figures["cpu_s"] > 0
    assert figures["cpu_us_per_token"] > 0
    assert {claim.name for claim in report.claims} == set()
    assert psutil.Process().children(recursive=True) == before


@pytest.mark.parametrize("arrivals", [recorded, even])
def test_turns_come_in_order_and_at_the_rate(arrivals):
    times = arrivals(200.0, 10.0)
    assert times == sorted(times)
    assert times[0] == 0
    assert len(times) == 2000
    assert 9 < times[-1] < 10


def test_a_live_run_sends_turns_together():
    times = recorded(200.0, 10.0)
    together = sum(later - sooner < 0.001 for sooner, later in pairwise(times))
    assert together > 1000


def test_more_turns_than_were_recorded():
    with pytest.raises(ValueError, match=r"--rate 1000 and --seconds 600 are 600000 turns"):
        recorded(1000.0, 600.0)
