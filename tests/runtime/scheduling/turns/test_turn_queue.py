import asyncio

from rose.runtime.policy.routing import place
from rose.runtime.scheduling.messages import Heartbeat
from rose.runtime.scheduling.turns.request import read
from rose.runtime.scheduling.turns.turn_queue import TurnQueue
from rose.runtime.scheduling.turns.turns import Trajectories, Turn
from rose.runtime.scheduling.workers import WorkerTable
from tests.runtime.scheduling.stand_ins import report


class Queue:
    def __init__(self):
        self.table, self.looked = WorkerTable(), 0
        self.queue = TurnQueue(self.table, Trajectories(), self.place)
        self.tasks = []

    def place(self, turn, workers, now_ns):
        self.looked += 1
        return place(turn, workers, now_ns)

    def hear(self, now_ns=0, **fields):
        self.table.hear(Heartbeat(device_id="d", engines=[report("http://x", run_id="a", **fields)]), now_ns)
        self.table["e0"].assign("a", now_ns)

    def begin(self, number, run_id="a", version_min=0):
        turn = Turn(read(b'{"input_ids": [1]}'), number, run_id, version_min)
        self.tasks.append(asyncio.create_task(self.queue.place(turn)))
        return self.tasks[-1]

    async def close(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert len(self.queue) == 0


async def test_many_that_wait_are_not_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr("rose.runtime.scheduling.turns.turn_queue.monotonic_ns", lambda: 0)
    queue = Queue()
    queue.hear(policy_version=3, capacity=2)
    waiting = [queue.begin(number, version_min=number % 2 * 9) for number in range(400)]
    await asyncio.sleep(0)
    assert (len(queue.queue), queue.looked) == (398, 2)
    queue.looked = 0
    queue.queue.dispatch(0)
    assert queue.looked == 0
    # Room for one more: of those that it may take, the first that came.
    first = await waiting[0]
    first.worker.release(first.item)
    queue.queue.dispatch(0)
    await asyncio.sleep(0)
    assert queue.looked == 1
    assert [task.done() for task in waiting[:6]] == [True, False, True, False, True, False]
    await queue.close()


async def test_a_turn_that_is_cancelled_as_it_is_placed_leaves_its_room(monkeypatch):
    monkeypatch.setattr("rose.runtime.scheduling.turns.turn_queue.monotonic_ns", lambda: 0)
    queue = Queue()
    task = queue.begin(0)
    await asyncio.sleep(0)
    queue.hear()
    queue.queue.dispatch(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert queue.table["e0"].in_flight == {}
    queue.hear(capacity=0)
    task = queue.begin(1)
    await asyncio.sleep(0)
    task.cancel()
    queue.hear()
    queue.queue.dispatch(0)
    await asyncio.gather(task, return_exceptions=True)
    assert queue.table["e0"].in_flight == {}
    assert len(queue.queue) == 0


async def test_turns_of_a_run_that_ends_are_let_go():
    queue = Queue()
    ending = queue.begin(0, "a", 3)
    queue.begin(1, "b")
    staying = queue.begin(2, "a", 3)
    await asyncio.sleep(0)
    next(waiting.turn for waiting in queue.queue._waiting["a", 3]).ended = "the run is closed"
    queue.queue.end("a")
    assert await ending is None
    assert (len(queue.queue), staying.done()) == (2, False)
    await queue.close()


async def test_a_run_waits_for_as_long_as_its_first_turn_has(monkeypatch):
    now = [100]
    monkeypatch.setattr("rose.runtime.scheduling.turns.turn_queue.monotonic_ns", lambda: now[0])
    queue = Queue()
    queue.begin(0)
    await asyncio.sleep(0)
    now[0] = 250
    queue.begin(1, version_min=4)
    queue.begin(2, "b")
    await asyncio.sleep(0)
    assert [queue.queue.waited_ns(run_id, 300) for run_id in ("a", "b", "c")] == [200, 50, 0]
    await queue.close()
    assert queue.queue.waited_ns("a", 300) == 0


async def test_a_turn_outwaits_minutes_in_which_nothing_is_lent(monkeypatch):
    monkeypatch.setattr("rose.runtime.scheduling.turns.turn_queue.monotonic_ns", lambda: 0)
    queue = Queue()
    turn = Turn(read(b'{"input_ids": [1]}'), 0, "a", 0)
    # One host is away for three minutes, and the other's serving wants its device for as long.
    turn.waited_ns = 180_000_000_000
    task = asyncio.create_task(queue.queue.place(turn))
    await asyncio.sleep(0)
    queue.hear()
    queue.queue.dispatch(0)
    assert (await task) is not None
