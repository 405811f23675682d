from __future__ import annotations

import pytest

from rose.runtime.scheduling.turns import turns


def test_ids_sort_by_the_time_they_were_made_at_whichever_process_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us = 1_800_000_000_000_000
    monkeypatch.setattr(turns, "utc_us", lambda: now_us)
    made = []
    for process in ("f" * 16, "0" * 16, "7" * 16, "f" * 16):
        monkeypatch.setattr(turns, "_PROCESS", process)
        made += [turns.new_id(), turns.new_id()]
        now_us += 1000
    assert made == sorted(set(made))


def test_ids_are_of_one_length_so_that_none_begins_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [turns.new_id() for _ in range(3)]
    monkeypatch.setattr(turns, "utc_us", lambda: 2**62 // 1000)
    made.append(turns.new_id())
    assert len({len(one) for one in made}) == 1
