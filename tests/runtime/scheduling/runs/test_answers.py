"""Completed turns that are kept: found again, by another process too, and not for ever."""

from __future__ import annotations

import os

import pytest

from rose.runtime.scheduling.runs import answers as answers_module
from rose.runtime.scheduling.runs.answers import AnswerStore, Kept
from rose.runtime.scheduling.runs.state import StateError


def kept(number, run_id="r"):
    return Kept(run_id, f"k{number}", b"digest", b"answer %d" % number, b"[%d]" % number)


def store_of(folder, numbers):
    store = AnswerStore(folder)
    for number in numbers:
        store.keep(kept(number))
    return store


def test_what_is_kept_is_found_by_a_process_that_comes_after_a_killed_one(tmp_path):
    store = store_of(tmp_path, range(50))
    assert store.find("r", "k7") == kept(7)
    other = AnswerStore(tmp_path)  # the first one was not closed
    assert other.find("r", "k7") == kept(7)
    assert other.find("another", "k7") is None
    assert other.find("r", "k50") is None
    assert list(other.events_json()) == [b"[%d]" % number for number in range(50)]
    assert next(other.path.iterdir()).stat().st_mode & 0o77 == 0
    other.close()
    store.close()


def test_processes_that_die_one_after_the_other_forget_nothing(tmp_path):
    for number in range(6):
        store_of(tmp_path, [number])  # not closed
    store = AnswerStore(tmp_path)
    assert [store.find("r", f"k{number}") for number in range(6)] == [kept(number) for number in range(6)]
    assert len(list(store.path.iterdir())) == 1
    store.close()


def test_what_comes_after_a_turn_that_was_not_written_whole_is_kept(tmp_path):
    store_of(tmp_path, range(3)).close()
    (path,) = (tmp_path / "turns").iterdir()
    long = Kept("r", "long", b"digest", b"a" * 1000, b"[]")
    store = AnswerStore(tmp_path)
    store.keep(long)
    store.close()
    path.write_bytes(path.read_bytes()[:-1])
    for number in (3, 4):
        store_of(tmp_path, [number]).close()
    store = AnswerStore(tmp_path)
    assert [store.find("r", f"k{number}") for number in range(5)] == [kept(number) for number in range(5)]
    assert store.find("r", "long") is None
    # Nothing is left of it that could be taken for a turn.
    assert path.read_bytes().count(b"a" * 100) == 0
    store.close()


def test_what_was_not_written_whole_was_not_written(tmp_path):
    store = store_of(tmp_path, range(3))
    store.close()
    (path,) = store.path.iterdir()
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 3):
        path.write_bytes(whole[:-cut])
        other = AnswerStore(tmp_path)
        assert (other.find("r", "k1"), other.find("r", "k2")) == (kept(1), None)
        other.close()
        for made in other.path.iterdir():
            if made != path:
                made.unlink()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    other = store_of(tmp_path, [9])
    assert (other.find("r", "k1"), other.find("r", "k2"), other.find("r", "k9")) == (kept(1), None, kept(9))
    other.close()


def test_what_is_too_old_or_too_much_is_forgotten(tmp_path, monkeypatch):
    store = store_of(tmp_path, range(3))
    monkeypatch.setattr(answers_module, "KEPT_NS", 0)
    store.keep(kept(3))
    assert store.find("r", "k0") == kept(0)
    store.keep(kept(4))
    assert (store.find("r", "k0"), store.find("r", "k3"), store.find("r", "k4")) == (None, kept(3), kept(4))
    assert len(list(store.path.iterdir())) == 2
    monkeypatch.setattr(answers_module, "KEPT_NS", 10**12)
    monkeypatch.setattr(answers_module, "KEPT_BYTES", 300)
    for number in range(100):
        store.keep(kept(number))
    assert sum(path.stat().st_size for path in store.path.iterdir()) < 500
    assert store.find("r", "k99") == kept(99)
    store.close()


def test_a_disk_that_refuses_costs_only_what_was_to_be_kept(tmp_path):
    store = store_of(tmp_path, range(2))
    descriptor = store._files[-1]._descriptor
    store._files[-1]._descriptor = os.open("/dev/full", os.O_RDWR)
    store.keep(kept(2))
    assert "No space left" in store.failure
    assert str(store.path) in store.failure
    os.close(store._files[-1]._descriptor)
    store._files[-1]._descriptor = descriptor
    store.keep(kept(3))
    assert (store.find("r", "k2"), store.find("r", "k3"), store.failure) == (None, kept(3), None)
    store.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StateError, match="missing/turns"):
        AnswerStore(tmp_path / "missing")


def test_without_a_folder_it_leaves_nothing():
    store = AnswerStore(None)
    assert store.path.exists()
    store.close()
    assert not store.path.exists()
