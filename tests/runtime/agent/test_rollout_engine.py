import dataclasses
import os
import signal
import socket
import threading

import pytest

from rose.clock import Anchor, monotonic_ns
from rose.runtime.agent import rollout_engine
from rose.runtime.agent.rollout_engine import RolloutEngine
from rose.runtime.coserving.accounts.accountant import Accountant
from rose.runtime.coserving.accounts.slices import Assignments
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines.adoption import EngineRecord
from tests.runtime.agent.agent_of_engine import agent_spec, straight, with_other
from tests.runtime.agent.agents_in_turn import until
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.stand_in_engine import LastingEngine, StandInEngine, broken, stand_in_spec, taken


class Kept:
    def __init__(self, folder, make=StandInEngine, **changes):
        self.page = ArbiterPage.create(folder / "page")
        self.spec = dataclasses.replace(stand_in_spec(folder), **changes)
        self.told, self.pids, self.changes = [], [], 0
        accountant = Accountant("d0", self.page, Anchor(0), monotonic_ns(), self.record, engine_id="r0", leases=[])
        self.engine = RolloutEngine(
            with_other(agent_spec(folder, "http://127.0.0.1:1", self.spec), "other", log=folder / "other.log"),
            self.page,
            accountant,
            self.record,
            assigned=Assignments(),
            changed=self.changed,
            via=straight,
            make=make,
        )

    def record(self, event, *, durable=None):
        self.told.append(event.action if event.reason is None else event.reason)
        self.pids.append(event.pid)

    def changed(self):
        self.changes += 1

    def start(self):
        self.engine.start()
        return self

    def started(self, count=1):
        until(lambda: self.told.count("started") >= count)
        return [pid for pid, what in zip(self.pids, self.told, strict=True) if what == "started"][count - 1]

    def close(self):
        self.engine.stop()
        self.page.close()


@pytest.fixture
def keep(tmp_path, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    made = []

    def make(*arguments, **changes):
        made.append(Kept(tmp_path, *arguments, **changes))
        return made[0]

    yield make
    for kept in made:
        kept.close()


def test_an_engine_that_dies_is_started_again_after_ever_longer(keep, gone, monkeypatch):
    kept = keep()
    waits, wait = [], kept.engine._stopping.wait
    monkeypatch.setattr(kept.engine._stopping, "wait", lambda seconds: waits.append(seconds) or wait(0.001))
    kept.start()
    first = kept.started()
    assert kept.engine.fault is None
    broken(kept.spec).touch()
    os.kill(first, signal.SIGKILL)
    until(lambda: kept.told.count("it did not start") >= 3)
    assert kept.engine.fault == "the rollout engine died (it did not start) and is started again"
    broken(kept.spec).unlink()
    second = kept.started(2)
    assert second != first
    assert kept.told[:3] == ["started", "the process ended", "it did not start"]
    assert [seconds for seconds in waits if seconds != rollout_engine._LOOK_S][:3] == [0.01, 0.02, 0.04]
    told = list(kept.told)
    assert kept.engine.stop()
    assert gone(second) == []
    assert kept.told == told, "one that is stopped did not die"
    assert not kept.engine.stop()


def test_one_whose_port_was_taken_is_started_once_more_on_another_if_it_may_have_any(keep):
    kept = keep(any_port=True)
    with taken(kept.spec.port):
        kept.start().started()
        assert kept.engine.engine.spec.port != kept.spec.port
    assert kept.told == [f"its port {kept.spec.port} was taken", "started"]


def test_a_model_that_does_not_start_is_tried_until_another_is_wanted(keep, tmp_path):
    kept = keep().start()
    kept.started()
    (tmp_path / "other.broken").touch()
    kept.engine.assign({}, {"r0": "other"})
    until(lambda: kept.told.count("it did not start") >= 2)
    assert (kept.engine.model, kept.engine.unstarted) == ("stand-in", "other")
    assert kept.engine.fault is not None
    kept.engine.assign({}, {"r0": "stand-in"})
    kept.started(2)
    assert (kept.engine.model, kept.engine.unstarted, kept.engine.fault) == ("stand-in", None, None)
    assert kept.told[:2] == ["started", "model 'other' is wanted"]
    (tmp_path / "other.broken").unlink()
    kept.engine.assign({}, {"r0": "other"})
    kept.started(3)
    assert (kept.engine.model, kept.engine.unstarted) == ("other", None)
    assert kept.engine.engine.spec.port == kept.spec.port


def test_an_engine_whose_scheduler_is_gone_is_dead_and_known_to_be_before_it_is_gone(keep, tmp_path, gone):
    known = []

    class SlowToEnd(StandInEngine):
        def kill(self):
            known.append((kept.engine.fault, kept.changes))
            super().kill()

    kept = keep(SlowToEnd)
    with OtherParty(tmp_path / "page", Party.ROLLOUT) as scheduler:
        first = kept.start().started()
        before = kept.changes
        scheduler.kill()
        # The next one's comes when it comes.
        assert kept.started(2) != first
    assert kept.told[:2] == ["started", "its scheduler ended"]
    assert known[0] == ("the rollout engine died (its scheduler ended) and is started again", before + 1)
    assert gone(first) == []


class DiesAsItIsSettled(StandInEngine):
    def settle(self):
        os.kill(self.pid, signal.SIGKILL)
        self._process.wait()
        super().settle()


class SpeaksNoHttp(StandInEngine):
    def post(self, path, body, timeout_s=30.0):
        super().post(path, body, timeout_s)
        self.url = f"http://127.0.0.1:{self.other.getsockname()[1]}"
        threading.Thread(target=self._answer).start()
        return super().post(path, body, timeout_s)

    def launch(self):
        super().launch()
        self.other = socket.create_server(("127.0.0.1", 0))

    def _answer(self):
        with self.other, self.other.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(b"nonsense\r\n\r\n")


class CannotWriteItsLog(StandInEngine):
    def launch(self):
        (self.spec.log.parent / "file").touch()
        self.spec = dataclasses.replace(self.spec, log=self.spec.log.parent / "file" / "log")
        super().launch()


def test_whatever_keeps_an_engine_from_starting_is_a_start_that_failed(keep, gone):
    kinds = iter([DiesAsItIsSettled, SpeaksNoHttp, CannotWriteItsLog])
    kept = keep(lambda spec: next(kinds, StandInEngine)(spec))
    kept.start().started()
    for said, reason in zip(kept.told, ("NoSuchProcess", "BadStatusLine", "FileExistsError"), strict=False):
        assert said.startswith("it did not start: ")
        assert reason in said
    assert [remains for pid in kept.pids[:2] for remains in gone(pid)] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_ends_the_keeping_is_known_and_the_engine_is_not_left_running_unused(keep, gone, monkeypatch):
    kept = keep()
    monkeypatch.setattr(kept, "changed", lambda: {}["nowhere"])
    kept.engine._changed = kept.changed
    kept.start()
    kept.engine._thread.join(30)
    assert kept.engine.failure == "keeping the rollout engine failed: KeyError: 'nowhere'"
    assert kept.engine.stop()
    assert gone(kept.pids[0]) == []


@pytest.mark.parametrize("unfit", [None, "it was called off"])
def test_an_engine_that_is_being_taken_up_is_left_by_who_is_to_leave_it(keep, unfit, monkeypatch):
    kept = keep(LastingEngine, orphan_s=600.0)
    engine, asked = LastingEngine(kept.spec), threading.Event()
    engine.launch()
    engine.wait_ready()
    record = EngineRecord.read(kept.page.path)

    def take_over(_engine):
        asked.set()
        assert kept.engine._stopping.wait(30)
        return unfit

    monkeypatch.setattr(kept.engine, "_take_over", take_over)
    kept.start()
    assert asked.wait(30)
    assert kept.engine.stop(leave=True)
    assert record.process() is not None
    assert EngineRecord.read(kept.page.path) == record
    assert kept.told == []
    engine.kill()


@pytest.fixture
def lent(keep, monkeypatch):
    """The engine of a lent GPU, and whether serving was there, as it was told look by look."""
    seen = []
    monkeypatch.setattr(rollout_engine, "has_engine", lambda path: seen.append(has_engine(path)) or seen[-1])
    return keep(gpu=0).start(), seen


def test_the_engine_of_a_lent_gpu_leaves_the_memory_to_serving_that_starts(tmp_path, lent, monkeypatch, gone):
    monkeypatch.setattr(rollout_engine, "AWAY_NS", 1)
    kept, looks = lent
    until(lambda: looks[:2] == [False, False])
    assert kept.told == []
    with OtherParty(tmp_path / "page", Party.SERVING):
        first = kept.started()
    ended = "no serving engine is on its GPU, and one that starts there comes first"
    until(lambda: ended in kept.told)
    assert gone(first) == []
    seen = len(looks)
    until(lambda: looks[seen : seen + 2] == [False, False])
    with OtherParty(tmp_path / "page", Party.SERVING):
        kept.started(2)
    assert kept.told[:3] == ["started", ended, "started"]


def test_that_of_serving_that_was_away_for_a_moment_goes_on(tmp_path, lent, monkeypatch):
    monkeypatch.setattr(rollout_engine, "AWAY_NS", 3_600_000_000_000)
    kept, looks = lent
    with OtherParty(tmp_path / "page", Party.SERVING):
        kept.started()
    seen = len(looks)
    until(lambda: False in looks[seen:])
    with OtherParty(tmp_path / "page", Party.SERVING):
        until(lambda: looks[-1])
    assert kept.told == ["started"]
    assert kept.engine.engine.alive
