"""The controller's benchmark on next to nothing: its parts start, speak with one another, and end."""

from __future__ import annotations

import psutil

from benchmarks.controller.__main__ import Size, measure
from benchmarks.report import Report


def test_turns_go_through_and_are_counted():
    before = psutil.Process().children(recursive=True)
    report = Report("controller", quick=True)
    size = Size(8, 2)
    measure(report, 0.2, 50, (size,), ways=("controller",))
    figures = report.detail[str(size)]["controller"]
    assert (figures["turns"], figures["failed"]) == (10, 0)
    assert figures["cpu_s"] > 0
    assert figures["cpu_us_per_token"] > 0
    assert {claim.name for claim in report.claims} == set()
    assert psutil.Process().children(recursive=True) == before
