"""The thread that brings an engine to its target, with engines that are there, are not, and refuse."""

from __future__ import annotations

import threading
import time

import pytest

from rose.events import Sync
from rose.runtime.coserving.weights import targets
from rose.runtime.coserving.weights.sync import Target
from rose.runtime.coserving.weights.targets import Targets


def target(version, run_id="a"):
    return Target(run_id, version, "http://127.0.0.1:1")


class Engine:
    """Takes a target unless a test says why not; `gate` holds it up meanwhile."""

    def __init__(self):
        self.held, self.asked, self.refused, self.located = ("", 0), [], {}, []
        self.gate = threading.Event()
        self.gate.set()
        self.changed = threading.Condition()

    def bring(self, wanted):
        with self.changed:
            self.asked.append((wanted.run_id, wanted.version))
            self.changed.notify_all()
        self.gate.wait(10)
        if self.held is None:
            return None
        reason = self.refused.get(wanted.version)
        with self.changed:
            if reason is None:
                self.held = (wanted.run_id, wanted.version)
            self.changed.notify_all()
        return Sync(
            policy_version=wanted.version,
            ok=reason is None,
            base_version=None,
            encoding="dense",
            wire_bytes=0,
            dense_bytes=0,
            total_ns=1,
            source="trainer",
            route="loopback",
            reason=reason,
        )

    def locate(self, target):
        with self.changed:
            self.located.append(target)
            self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, 20), (self.held, self.asked)


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
def aimed(engine, monkeypatch):
    monkeypatch.setattr(targets, "BACK_OFF_FIRST_S", 0.02)
    made = Targets("d0", lambda: engine.held, engine.bring, engine.locate)
    made.start()
    yield made
    engine.gate.set()
    made.stop()


def test_an_engine_is_brought_to_its_target_once(engine, aimed):
    aimed.aim(target(3))
    engine.wait(lambda: engine.held == ("a", 3))
    aimed.aim(target(3))
    aimed.aim(None)
    aimed.aim(target(3, "b"))
    engine.wait(lambda: engine.held == ("b", 3))
    assert engine.asked == [("a", 3), ("b", 3)]
    assert aimed.failed is None


def test_the_newest_wins(engine, aimed):
    engine.gate.clear()
    aimed.aim(target(1))
    engine.wait(lambda: engine.asked)
    for version in (2, 3, 4):
        aimed.aim(target(version))
    engine.gate.set()
    engine.wait(lambda: engine.held == ("a", 4))
    assert engine.asked == [("a", 1), ("a", 4)]


def test_a_target_that_was_missed_is_tried_again_after_ever_longer_and_the_reason_is_known(engine, aimed):
    engine.refused[1] = "no room"
    aimed.aim(target(1))
    engine.wait(lambda: len(engine.asked) >= 4)
    assert aimed.failed == "version 1 of run 'a': no room"
    engine.refused.clear()
    engine.wait(lambda: engine.held == ("a", 1))
    deadline = time.monotonic() + 5
    while aimed.failed is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_another_target_does_not_wait_for_one_that_was_missed(engine, aimed, monkeypatch):
    monkeypatch.setattr(targets, "BACK_OFF_FIRST_S", 30.0)
    engine.refused[1] = "no room"
    aimed.aim(target(1))
    engine.wait(lambda: engine.asked)
    aimed.aim(target(2))
    engine.wait(lambda: engine.held == ("a", 2))
    assert aimed.failed is None


def test_an_engine_that_is_not_there_yet_is_waited_for(engine, aimed):
    engine.held = None
    aimed.aim(target(1))
    engine.wait(lambda: engine.asked)
    assert aimed.failed is None
    engine.held = ("", 0)
    engine.wait(lambda: engine.held == ("a", 1))


def test_an_engine_that_was_started_again_is_brought_to_its_target_again(engine, aimed):
    aimed.aim(target(1))
    engine.wait(lambda: engine.held == ("a", 1))
    engine.wait(lambda: engine.located)
    for held in (None, ("", 0)):
        engine.held = held
    engine.wait(lambda: engine.asked == [("a", 1), ("a", 1)])
    engine.wait(lambda: engine.held == ("a", 1))


def test_whoever_has_the_engine_is_told_where_its_target_is_fetched_and_told_again_when_that_moves(engine, aimed):
    engine.held = ("a", 1)
    here, moved = target(1), Target("a", 1, "http://127.0.0.1:2")
    renamed = Target("a", 1, moved.url, "token")
    for count, told in enumerate([here, moved, renamed], 1):
        aimed.aim(told)
        engine.wait(lambda expected=count: len(engine.located) == expected)
    assert engine.located == [here, moved, renamed]
    assert engine.asked == []


def test_a_token_is_not_shown():
    assert "secret" not in repr(Target("a", 1, "http://127.0.0.1:1", "secret"))
