from __future__ import annotations

from rose.runtime.scheduling.turns import turns
from rose.runtime.scheduling.turns.turns import Trajectories


def test_the_prefix_is_where_the_last_turn_was_completed():
    seen = Trajectories()
    seen.begin("t")
    assert seen.engine("t") is None
    seen.completed("t", "e0")
    seen.begin("t")
    assert seen.engine("t") == "e0"


def test_no_more_are_remembered_than_allowed_and_the_idle_one_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(turns, "REMEMBERED_MAX", 2)
    seen = Trajectories()
    for name in ("a", "b"):
        seen.begin(name)
        seen.completed(name, "e0")
    seen.begin("a")
    seen.begin("c")
    assert [seen.engine(name) for name in ("a", "b", "c")] == ["e0", None, None]


def test_it_learns_how_often_trajectories_go_on():
    seen = Trajectories()
    for number in range(400):
        for _ in range(4):  # each turn but the first follows one
            seen.begin(f"t{number}")
    assert 0.7 < seen.follow_share < 0.8
