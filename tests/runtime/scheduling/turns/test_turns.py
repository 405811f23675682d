from rose.runtime.scheduling.turns import turns
from rose.runtime.scheduling.turns.turns import Trajectories


def test_ids_have_one_length_and_sort_by_time_across_processes(monkeypatch):
    """Of ids of one length none begins with another."""
    now_us, ids = 1_800_000_000_000_000, []
    monkeypatch.setattr(turns, "utc_us", lambda: now_us)
    for process in ("f" * 16, "0" * 16, "7" * 16, "f" * 16):
        monkeypatch.setattr(turns, "_PROCESS", process)
        ids += [turns.new_id(), turns.new_id()]
        now_us += 1000
    now_us = 2**62 // 1000
    ids.append(turns.new_id())
    assert ids == sorted(set(ids))
    assert len({len(name) for name in ids}) == 1


def test_the_prefix_is_where_the_last_turn_was_completed_until_it_is_idle_for_longest(monkeypatch):
    monkeypatch.setattr(turns, "REMEMBERED_MAX", 2)
    seen = Trajectories()
    assert seen.engine("a") is None
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
