"""Completed turns that are kept: found again, by another process too, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from rose.runtime.scheduling.runs import answers as answers_module
from rose.runtime.scheduling.runs.answers import AnswerStore, Kept
from rose.runtime.scheduling.runs.state import StateError


def kept(number, run_id="r"):
    return Kept(run_id, f"k{number}", b"digest", b"answer %d" % number, b"[]")


def test_what_is_kept_is_found_by_a_process_that_comes_after_a_killed_one(tmp_path):
    store = AnswerStore(tmp_path)

    async def scenario():
        await asyncio.gather(*(store.keep(kept(number)) for number in range(50)))

    asyncio.run(scenario())
    other = AnswerStore(tmp_path)  # the first one was not closed
    assert other.find("r", "k7") == kept(7)
    assert other.find("another", "k7") is None
    assert other.find("r", "k50") is None
    assert len(other.events_json()) == 50
    other.close()
    store.close()


def test_what_is_too_old_or_too_much_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(answers_module, "_SWEEP_US", 0)
    monkeypatch.setattr(answers_module, "KEPT_MAX", 3)
    store = AnswerStore(tmp_path)

    async def scenario():
        for number in range(9):
            await store.keep(kept(number))
        assert store.find("r", "k0") is None
        assert store.find("r", "k8") == kept(8)
        monkeypatch.setattr(answers_module, "KEPT_US", -1)
        await store.keep(kept(9))
        assert store.find("r", "k8") is None

    asyncio.run(scenario())
    store.close()


def test_a_disk_that_refuses_costs_only_what_was_to_be_kept(tmp_path):
    store = AnswerStore(tmp_path)
    store._reading.execute("DROP TABLE turn")

    async def scenario():
        await store.keep(kept(1))
        assert store.find("r", "k1") is None
        assert "turns.sqlite" in store.failure

    asyncio.run(scenario())
    store.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StateError, match=r"turns\.sqlite"):
        AnswerStore(tmp_path / "missing")


def test_without_a_folder_it_leaves_nothing():
    store = AnswerStore(None)
    assert store.path.exists()
    store.close()
    assert not store.path.exists()
