"""Parts are real processes here, started by a stand-in for Ray that knows only what the supervisor asks of it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import ClassVar

import pytest

from rose.runtime import supervision
from rose.runtime.cluster import DeploymentError, PartDiedError
from rose.runtime.supervision import Part, Supervisor

FORK = multiprocessing.get_context("fork")


def serve(pipe):
    """The process: answers (method, arguments) with (ok, value)."""
    while True:
        method, arguments = pipe.recv()
        if method == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "fail":
            pipe.send((False, "it cannot"))
        elif method == "sleep":
            time.sleep(arguments[0])
            pipe.send((True, os.getpid()))
        elif method == "begin_in_a_later_life" and len(Actor.started) == 1:
            time.sleep(60)
        else:
            pipe.send((True, (os.getpid(), *arguments)))


class Remote:
    def __init__(self, actor, method):
        self._actor, self._method = actor, method

    def remote(self, *arguments):
        return self._actor.pool.submit(self._actor.ask, self._method, arguments)


class Actor:
    """A process with one thread, as Ray's actors have."""

    started: ClassVar[list[Actor]] = []

    def __init__(self):
        self.started.append(self)
        self.pipe, other = FORK.Pipe()
        self.process = FORK.Process(target=serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.pool = ThreadPoolExecutor(1)

    def __getattr__(self, method):
        return Remote(self, method)

    def ask(self, method, arguments):
        try:
            self.pipe.send((method, arguments))
            ok, value = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise PartDiedError("the process is gone") from error
        if not ok:
            raise ValueError(value)
        return value


class Processes:
    """What the supervisor needs of `Cluster`."""

    def poll(self, refs: list[Future], timeout_s=0.05):
        done = wait(refs, timeout=timeout_s).done
        return [ref for ref in refs if ref in done]

    def result(self, ref):
        return ref.result()

    def kill(self, actor):
        actor.process.kill()
        actor.process.join()


@pytest.fixture(autouse=True)
def no_process_stays():
    """A worker of the suite ends without its exit handlers, and with them what `daemon` promises."""
    yield
    for actor in Actor.started:
        actor.process.kill()
        actor.process.join()
    Actor.started.clear()


@pytest.fixture
def said():
    return []


@pytest.fixture
def supervisor(monkeypatch, said):
    monkeypatch.setattr(supervision, "_BACK_OFF_FIRST_S", 0.01)
    monkeypatch.setattr(supervision, "_WATCH_S", 0.02)
    return Supervisor(Processes(), said.append)


def start(supervisor, **fields):
    made = []

    def make(restarts):
        made.append(restarts)
        return Actor()

    return supervisor.start(Part("the worker", make, **fields)), made


def nothing():
    pass


def look_until(supervisor, condition):
    while not condition():
        supervisor.look()
        time.sleep(0.01)


def test_results_come_in_order(supervisor):
    part, _ = start(supervisor)
    calls = [supervisor.call(part, "say", number) for number in range(3)]
    assert [result[1] for result in supervisor.wait(calls, nothing)] == [0, 1, 2]


def test_what_was_asked_of_a_part_that_died_is_asked_anew(supervisor, said):
    part, made = start(supervisor)
    sleeping = supervisor.call(part, "sleep", 0.2)
    part.actor.process.kill()
    (pid,) = supervisor.wait([sleeping], nothing)
    assert pid == part.actor.process.pid
    assert made == [0, 1]
    assert sleeping.tries == 2
    assert said == ["the worker died and is started again: the process is gone"]


def test_a_call_beside_is_made_again_while_another_is_waited_for(supervisor):
    part, _ = start(supervisor)
    other = supervisor.start(Part("another", lambda _: Actor()))
    beside = supervisor.call(part, "sleep", 0.3)
    part.actor.process.kill()
    supervisor.wait([supervisor.call(other, "sleep", 2.0)], nothing, beside=[beside])
    assert beside.tries == 2
    assert beside.ended
    assert supervisor.wait([beside], nothing) == [part.actor.process.pid]


def test_what_a_call_beside_raises_is_raised(supervisor):
    part, _ = start(supervisor)
    other = supervisor.start(Part("another", lambda _: Actor()))
    with pytest.raises(ValueError, match="it cannot"):
        supervisor.wait([supervisor.call(other, "sleep", 1.0)], nothing, beside=[supervisor.call(part, "fail")])


def test_arguments_may_depend_on_how_often_a_call_was_tried(supervisor):
    part, _ = start(supervisor)
    call = supervisor.call_with(part, "say", lambda tries: (f"try {tries}",))
    assert supervisor.wait([call], nothing)[0][1] == "try 0"
    sleeping = supervisor.call_with(part, "sleep", lambda tries: (0.2 if tries == 0 else 0.0,))
    part.actor.process.kill()
    supervisor.wait([sleeping], nothing)
    assert sleeping.tries == 2


def test_a_part_that_nobody_calls_is_started_again_too(supervisor):
    part, made = start(supervisor)
    look_until(supervisor, lambda: part.report is not None)
    os.kill(part.report[0], signal.SIGKILL)
    look_until(supervisor, lambda: part.restarts == 1 and part.again_at is None)
    assert made == [0, 1]


def test_a_death_that_several_calls_notice_is_one_death(supervisor):
    part, made = start(supervisor)
    calls = [supervisor.call(part, "sleep", 0.1) for _ in range(4)]
    part.actor.process.kill()
    supervisor.wait(calls, nothing)
    assert made == [0, 1]
    assert len(part.deaths) == 1


def test_a_part_that_keeps_dying_is_given_up_with_a_reason(supervisor):
    part, made = start(supervisor)
    with pytest.raises(DeploymentError, match=r"the worker died 6 times within 60 s .*the process is gone"):
        supervisor.wait([supervisor.call(part, "die")], nothing)
    assert len(made) == 6


def test_deaths_of_long_ago_do_not_count(monkeypatch, said):
    monkeypatch.setattr(supervision, "_BACK_OFF_FIRST_S", 0.0)
    now = [0.0]
    supervisor = Supervisor(Processes(), said.append, clock=lambda: now[0])
    part, _ = start(supervisor)
    for _ in range(2 * supervision.DEATHS_MAX):
        now[0] += supervision.DEATHS_WITHIN_S / supervision.DEATHS_MAX + 1
        part.actor.process.kill()
        supervisor.wait([supervisor.call(part, "say")], nothing)
    assert part.restarts == 2 * supervision.DEATHS_MAX


def test_a_part_that_cannot_begin_the_first_time_ends_the_run(supervisor):
    part, _ = start(supervisor, begin="fail")
    with pytest.raises(ValueError, match="it cannot"):
        supervisor.wait_begun([part], nothing)


def test_a_part_that_cannot_be_made_the_first_time_ends_the_run(supervisor):
    class Unborn(Actor):
        def ask(self, method, arguments):
            raise PartDiedError("no room in its creation task", unborn=True)

    part = supervisor.start(Part("the worker", lambda _: Unborn()))
    with pytest.raises(DeploymentError, match="the worker could not be started: no room"):
        supervisor.wait([supervisor.call(part, "say")], nothing)


def test_a_part_that_is_not_well_is_started_again(supervisor, said):
    part, _ = start(supervisor, watch="fail")
    look_until(supervisor, lambda: part.restarts == 1)
    assert said == ["the worker died and is started again: it cannot"]


def test_beginning_is_waited_for_through_a_death(supervisor):
    part, made = start(supervisor, begin="begin_in_a_later_life")
    part.actor.process.kill()
    supervisor.wait_begun([part], nothing)
    assert made == [0, 1]


def test_a_call_raises_what_its_method_raises(supervisor):
    part, made = start(supervisor)
    with pytest.raises(ValueError, match="it cannot"):
        supervisor.wait([supervisor.call(part, "fail")], nothing)
    assert made == [0]


def test_waiting_ends_when_the_one_who_tends_says_so(supervisor):
    part, _ = start(supervisor)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervisor.wait([supervisor.call(part, "sleep", 60)], stop)
    part.actor.process.kill()
