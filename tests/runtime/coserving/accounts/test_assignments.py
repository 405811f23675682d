from __future__ import annotations

from rose.runtime.coserving.accounts.slices import Assignments


def test_time_belongs_to_the_run_that_was_assigned_then():
    runs = Assignments("a")
    runs.change(10, "b")
    runs.change(20, "b")
    runs.change(30, "")
    assert [runs.at(time_ns) for time_ns in (-5, 9, 10, 29, 30)] == ["a", "a", "b", "b", ""]
    assert runs.now == ""
    assert runs.between(0, 100) == [10, 30]
    assert runs.between(10, 30) == []
    runs.forget(10)
    assert runs.at(15) == "b"
    assert runs.between(0, 100) == [10, 30], "of what is kept nothing changes"
    runs.forget(1_000)
    assert runs.between(0, 100) == [30]
    assert runs.at(50) == ""
