"""The controller's process does not run for a while, as on a machine that is paused: nobody was silent."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.scheduling import collector, devices
from rose.runtime.scheduling.controller import excused_ns
from rose.runtime.scheduling.engines import workers
from tests.runtime.scheduling.stand_ins import SERVERS, FakeEngine, open_run, play, serve, until

STALL_S = 4.0


def test_a_controller_that_did_not_run_takes_nobody_for_silent(monkeypatch):
    for module, name in ((workers, "LOST_NS"), (workers, "FORGET_NS"), (devices, "FORGET_NS")):
        monkeypatch.setattr(module, name, int(STALL_S * 0.7e9))

    async def scenario():
        making, idle = FakeEngine(pause_s=0.2), FakeEngine()
        async with serve(making) as url, serve(idle) as idle_url, play() as run:
            await run.beat(run.report(url, "making"), device_id="d0")
            turn = run.begin(8)
            await until(lambda: making.requests)
            await run.beat(run.report(idle_url, "idle"), device_id="d1")
            other = await open_run(run.session, "other", expires_s=STALL_S * 0.7)
            time.sleep(STALL_S)  # noqa: ASYNC251 - the whole process stands still
            # Past the tick, and before anybody is heard again.
            await asyncio.sleep(0.3)
            controller = SERVERS[0].controller
            assert {worker.report.engine_id for worker in controller.workers} == {"making", "idle"}
            assert {device.device_id for device in controller.devices} == {"d0", "d1"}
            assert controller.runs.get(other["run_id"]).is_open
            await run.beat(run.report(url, "making"), device_id="d0")
            generation = await turn
            assert [attempt.outcome for attempt in generation.attempts] == ["completed"]
            # Whoever is silent from now on is noticed all the same.
            await until(lambda: not controller.runs.get(other["run_id"]).is_open)
            await until(lambda: "idle" not in controller.workers and "d1" not in controller.devices)

    asyncio.run(scenario())


def test_a_slow_disk_in_the_tick_itself_is_nobody_s_silence(monkeypatch):
    monkeypatch.setattr(workers, "FORGET_NS", int(STALL_S * 0.7e9))

    async def scenario():
        async with serve(FakeEngine()) as url, play() as run:
            await run.beat(run.report(url))
            controller = SERVERS[0].controller
            expire, slow = controller.runs.expire, [True]

            def stalled(now_ns):
                if slow:
                    slow.clear()
                    time.sleep(STALL_S)
                return expire(now_ns)

            monkeypatch.setattr(controller.runs, "expire", stalled)
            await until(lambda: not slow)
            await asyncio.sleep(0.3)
            assert "e0" in controller.workers

    asyncio.run(scenario())


def test_a_slow_disk_under_what_a_client_asks_is_nobody_s_silence(monkeypatch):
    monkeypatch.setattr(workers, "LOST_NS", int(STALL_S * 0.7e9))

    async def scenario():
        making = FakeEngine(pause_s=0.2)
        async with serve(making) as url, play() as run:
            await run.beat(run.report(url))
            turn = run.begin(8)
            await until(lambda: making.requests)
            state = SERVERS[0].controller.state
            keep = state.keep

            def stalled(*facts):
                monkeypatch.setattr(state, "keep", keep)
                time.sleep(STALL_S)
                return keep(*facts)

            monkeypatch.setattr(state, "keep", stalled)
            await open_run(run.session, "other")
            await run.beat(run.report(url))
            generation = await turn
            assert [attempt.outcome for attempt in generation.attempts] == ["completed"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("at_ns", "late_ns", "now_ns", "expected_ns"),
    [(70, 20, 100, 90), (90, 20, 100, 100), (100, 20, 100, 100), (130, 20, 100, 130)],
    ids=["overdue before", "due meanwhile", "heard now", "not due yet"],
)
def test_silence_is_what_there_was_of_it_before(at_ns, late_ns, now_ns, expected_ns):
    assert excused_ns(at_ns, late_ns, now_ns) == expected_ns


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_nobody_is_silent_for_longer_than_while_it_was_heard_and_nobody_is_excused_beyond_now(at_ns, late_ns, now_ns):
    excused = excused_ns(at_ns, late_ns, now_ns)
    assert excused >= at_ns
    assert max(0, now_ns - excused) == max(0, now_ns - at_ns - late_ns)
    assert excused <= max(at_ns, now_ns)


@pytest.fixture
def own_collector() -> Iterator[None]:
    """A collector whose settings are put back."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class _Cycle:
    """What only the collector frees."""

    freed = 0

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        type(self).freed += 1


@pytest.mark.usefixtures("own_collector")
def test_what_was_loaded_is_left_alone_and_what_turns_leave_is_freed_in_time():
    gc.collect()
    collector.spare()
    assert gc.get_freeze_count() > 10_000
    made = 4 * gc.get_threshold()[0]
    for _ in range(made):
        _Cycle()
    assert 0 < made - _Cycle.freed <= 2 * gc.get_threshold()[0]
