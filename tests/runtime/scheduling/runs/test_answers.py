import pytest

from rose.runtime.scheduling.runs import answers as answers_module
from rose.runtime.scheduling.runs.answers import AnswerStore
from rose.runtime.scheduling.runs.state import StateError


def keep(store, *numbers, run_id="r"):
    for number in numbers:
        store.keep(run_id, f"k{number}", b"digest", b"answer %d" % number, b"[%d]" % number)


def found(store, *numbers):
    kept = {number: store.find("r", f"k{number}") for number in numbers}
    assert all(kept[number] in (None, (b"digest", b"answer %d" % number)) for number in numbers)
    return [number for number in numbers if kept[number] is not None]


def test_what_is_kept_is_found_by_processes_that_come_after_killed_ones(tmp_path):
    living = []
    for number in range(6):
        living.append(AnswerStore(tmp_path))  # not closed
        keep(living[-1], number)
        living[-1].count("r", number, 10 * number)
        living[-1].count("other", 1, 2)
    living[-1].forget_count("other")
    store = AnswerStore(tmp_path)
    assert found(store, *range(7)) == list(range(6))
    assert store.find("another", "k1") is None
    assert store.counts() == {"r": (5, 50)}
    assert list(store.events_json()) == [b"[%d]" % number for number in range(6)]
    assert all(path.stat().st_mode & 0o77 == 0 for path in tmp_path.iterdir())
    for opened in (*living, store):
        opened.close()
    answers_module.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_old_or_too_much_is_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(answers_module, "_TRIM_US", 0)
    store = AnswerStore(tmp_path)
    keep(store, *range(3))
    monkeypatch.setattr(answers_module, "KEPT_US", -1)
    keep(store, 3)
    assert found(store, *range(4)) == [3]
    monkeypatch.setattr(answers_module, "KEPT_US", 10**12)
    monkeypatch.setattr(answers_module, "KEPT_BYTES", 300)
    keep(store, *range(100))
    assert found(store, *range(100))[-1] == 99
    assert 10 < len(found(store, *range(100))) < 35
    store.close()


def test_a_disk_that_refuses_costs_only_what_was_to_be_kept(tmp_path):
    store = AnswerStore(tmp_path)
    keep(store, 0, 1)
    store._connection.execute("PRAGMA query_only = ON")
    keep(store, 2)
    assert f"{store.path}: attempt to write a readonly database" in store.failure
    store._connection.execute("PRAGMA query_only = OFF")
    keep(store, 3)
    assert (found(store, *range(4)), store.failure) == ([0, 1, 3], None)
    store.close()


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(StateError, match="missing/turns"):
        AnswerStore(tmp_path / "missing")
