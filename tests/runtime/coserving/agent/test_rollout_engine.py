"""An engine that is kept running: real processes that die."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import threading

import pytest

from rose.runtime.coserving.agent import rollout_engine
from rose.runtime.coserving.agent.rollout_engine import RolloutEngine
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines.adoption import EngineRecord
from rose.runtime.engines.sglang import AddressInUseError, EngineError
from tests.runtime.coserving.agents_in_turn import until
from tests.runtime.coserving.lasting_engine import LastingEngine
from tests.runtime.coserving.parties import OtherParty
from tests.runtime.coserving.stand_in_engine import StandInEngine, broken, stand_in_spec, taken


class Lives:
    """Writes down what it is told, and lets a test wait for it."""

    def __init__(self):
        self.told, self._changed = [], threading.Condition()

    def launched(self, engine):
        self._note("launched", engine)

    def answers(self, engine, duration_ns):
        assert engine.alive
        assert duration_ns > 0
        self._note("answers", engine)

    def ended(self, engine, reason, *, died=True):
        assert not engine.alive
        self._note(reason if died else f"ended: {reason}", engine)

    def given_up(self):
        pass

    def _note(self, what, engine):
        with self._changed:
            self.told.append((what, engine))
            self._changed.notify_all()

    @property
    def words(self):
        return [what for what, _ in self.told]

    def wait(self, what, count=1):
        with self._changed:
            assert self._changed.wait_for(lambda: self.words.count(what) >= count, 30), self.words
            return next(engine for word, engine in reversed(self.told) if word == what)


@pytest.fixture
def lives():
    return Lives()


@pytest.fixture
def keep(tmp_path, lives, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    spec = stand_in_spec(tmp_path)
    keeper = RolloutEngine(spec, lives, StandInEngine)
    yield keeper, spec
    keeper.stop()


def test_an_engine_that_dies_is_started_again(keep, lives, gone):
    keeper, _ = keep
    keeper.start()
    first = lives.wait("answers")
    os.kill(first.pid, signal.SIGKILL)
    second = lives.wait("answers", 2)
    assert second.pid != first.pid
    assert lives.words == ["launched", "answers", "the process ended", "launched", "answers"]
    assert keeper.stop()
    assert gone(second.pid) == []
    assert lives.words[-1] == "answers", "one that is stopped did not die"
    assert not keeper.stop()


def test_one_whose_port_was_taken_is_started_once_more_on_another(tmp_path, lives, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    spec = dataclasses.replace(stand_in_spec(tmp_path), any_port=True)
    keeper = RolloutEngine(spec, lives, StandInEngine)
    with taken(spec.port):
        keeper.start()
        assert lives.wait("answers").spec.port != spec.port
        keeper.stop()
    assert lives.words == ["launched", f"its port {spec.port} was taken", "launched", "answers"]


def test_one_that_was_given_its_port_has_to_be_there(keep, lives):
    keeper, spec = keep
    with taken(spec.port), pytest.raises(AddressInUseError, match="in use"):
        keeper.start()
    assert lives.words == ["launched", "it did not start"]


def test_one_that_never_answered_is_not_kept(keep, lives):
    keeper, spec = keep
    broken(spec).touch()
    with pytest.raises(EngineError, match="before it was ready"):
        keeper.start()
    assert lives.words == ["launched", "it did not start"]
    assert not keeper.stop()


def test_one_that_answered_once_is_tried_again_however_often_it_fails(keep, lives):
    keeper, spec = keep
    keeper.start()
    broken(spec).touch()
    os.kill(lives.wait("answers").pid, signal.SIGKILL)
    lives.wait("it did not start", 2)
    broken(spec).unlink()
    lives.wait("answers", 2)
    keeper.stop()


def test_the_wait_grows_with_each_death(keep, lives, monkeypatch):
    keeper, spec = keep
    waits = []
    wait = keeper._stopping.wait
    monkeypatch.setattr(keeper._stopping, "wait", lambda seconds: waits.append(seconds) or wait(0.001))
    keeper.start()
    broken(spec).touch()
    os.kill(lives.wait("answers").pid, signal.SIGKILL)
    lives.wait("it did not start", 3)
    keeper.stop()
    backed_off = [seconds for seconds in waits if seconds != rollout_engine._LOOK_S]
    assert backed_off[:3] == [0.01, 0.02, 0.04]


def test_an_engine_whose_scheduler_is_gone_is_dead_although_its_server_answers(tmp_path, lives, gone):
    page = ArbiterPage.create(tmp_path / "page")
    spec = stand_in_spec(tmp_path)
    keeper = RolloutEngine(spec, lives, StandInEngine, scheduling=lambda: page.alive(Party.ROLLOUT))
    scheduler = OtherParty(tmp_path / "page", Party.ROLLOUT)
    try:
        keeper.start()
        first = lives.wait("answers")
        scheduler.kill()
        lives.wait("its scheduler ended")
        assert gone(first.pid) == []
        # The next one's comes when it comes.
        assert lives.wait("answers", 2).pid != first.pid
    finally:
        scheduler.kill()
        keeper.stop()
        page.close()


def test_that_an_engine_is_dying_is_known_before_it_is_gone(tmp_path, lives, monkeypatch):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    known = []

    class SlowToEnd(StandInEngine):
        def kill(self):
            known.append(keeper.dying)
            super().kill()

    keeper = RolloutEngine(stand_in_spec(tmp_path), lives, SlowToEnd)
    keeper.start()
    os.kill(lives.wait("answers").pid, signal.SIGKILL)
    lives.wait("answers", 2)
    assert known == ["the rollout engine died (the process ended) and is started again"]
    assert keeper.dying is None
    keeper.stop()


class DiesAsItIsSettled(StandInEngine):
    """Between its first answer and what comes next."""

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


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (DiesAsItIsSettled, "NoSuchProcess"),
        (SpeaksNoHttp, "BadStatusLine"),
        (CannotWriteItsLog, "FileExistsError"),
    ],
)
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "once"])
def test_whatever_keeps_an_engine_from_starting_is_a_start_that_failed(
    tmp_path, lives, monkeypatch, gone, first, reason, persistent
):
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    kinds = iter([first])
    keeper = RolloutEngine(
        stand_in_spec(tmp_path), lives, lambda spec: next(kinds, StandInEngine)(spec), persistent=persistent
    )
    try:
        if persistent:
            keeper.start()
            lives.wait("answers")
        else:
            with pytest.raises(EngineError, match=f"engine r0 .none.: it did not start: .*{reason}"):
                keeper.start()
        (_, engine), (ended, _) = lives.told[:2]
        assert ended.startswith("it did not start: ")
        assert reason in ended
        assert engine.pid is None or gone(engine.pid) == []
        assert keeper.failure is None
    finally:
        keeper.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "once"])
def test_what_ends_the_keeping_is_known(tmp_path, lives, gone, persistent):
    def fails(*_):
        raise LookupError("nowhere")

    lives.answers = fails
    keeper = RolloutEngine(stand_in_spec(tmp_path), lives, StandInEngine, persistent=persistent)
    failure = "keeping the rollout engine failed: LookupError: nowhere"
    if persistent:
        keeper.start()
        keeper._thread.join(30)
    else:
        with pytest.raises(EngineError, match=failure):
            keeper.start()
    assert keeper.failure == failure
    assert keeper.stop()
    assert gone(lives.told[0][1].pid) == [], "it is not left running unused"


@pytest.fixture
def left(tmp_path):
    """The spec and the record of an engine that runs without an agent."""
    page = ArbiterPage.create(tmp_path / "page")
    spec = dataclasses.replace(stand_in_spec(tmp_path), orphan_s=600.0)
    engine = LastingEngine(spec)
    engine.launch()
    engine.wait_ready()
    yield spec, EngineRecord.read(spec.plugin.page)
    engine.kill()
    page.close()


@pytest.mark.parametrize("unfit", [None, "it was called off"])
def test_an_engine_that_is_being_taken_up_is_left_by_who_is_to_leave_it(left, lives, unfit):
    spec, record = left
    asked = threading.Event()

    def adopted(engine):
        asked.set()
        assert keeper._stopping.wait(30)
        return unfit

    lives.adopted = adopted
    keeper = RolloutEngine(spec, lives, LastingEngine, scheduling=lambda: True, persistent=True)
    keeper.start()
    assert asked.wait(30)
    assert keeper.stop(leave=True)
    assert record.process() is not None
    assert EngineRecord.read(spec.plugin.page) == record
    assert lives.told == []


@pytest.fixture
def looks(tmp_path, lives, monkeypatch):
    """Whether serving was there, as the engine of a lent GPU was told look by look."""
    monkeypatch.setattr(rollout_engine, "BACK_OFF_FIRST_S", 0.01)
    page, seen = ArbiterPage.create(tmp_path / "page"), []
    monkeypatch.setattr(rollout_engine, "has_engine", lambda path: seen.append(has_engine(path)) or seen[-1])
    spec = dataclasses.replace(stand_in_spec(tmp_path), gpu=0)
    keeper = RolloutEngine(spec, lives, StandInEngine, persistent=True)
    keeper.start()
    yield seen
    keeper.stop()
    page.close()


def test_the_engine_of_a_lent_gpu_leaves_the_memory_to_serving_that_starts(tmp_path, looks, lives, monkeypatch, gone):
    monkeypatch.setattr(rollout_engine, "AWAY_NS", 1)
    until(lambda: looks[:2] == [False, False])
    assert lives.words == []
    with OtherParty(tmp_path / "page", Party.SERVING):
        first = lives.wait("answers")
    ended = "ended: no serving engine is on its GPU, and one that starts there comes first"
    lives.wait(ended)
    assert gone(first.pid) == []
    seen = len(looks)
    until(lambda: looks[seen : seen + 2] == [False, False])
    with OtherParty(tmp_path / "page", Party.SERVING):
        lives.wait("answers", 2)
    assert lives.words[:5] == ["launched", "answers", ended, "launched", "answers"]


def test_that_of_serving_that_was_away_for_a_moment_goes_on(tmp_path, looks, lives, monkeypatch):
    monkeypatch.setattr(rollout_engine, "AWAY_NS", 3_600_000_000_000)
    with OtherParty(tmp_path / "page", Party.SERVING):
        engine = lives.wait("answers")
    seen = len(looks)
    until(lambda: False in looks[seen:])
    with OtherParty(tmp_path / "page", Party.SERVING):
        until(lambda: looks[-1])
    assert lives.words == ["launched", "answers"]
    assert engine.alive
