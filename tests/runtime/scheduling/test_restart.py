import asyncio
from contextlib import ExitStack, asynccontextmanager

import aiohttp

from rose.client.address import RunAddress
from rose.client.turns import TurnClient
from rose.runtime.engines.ports import free_port
from tests import programs
from tests.ledger.conftest import ask
from tests.runtime.scheduling.stand_ins import (
    AGENT_TOKEN,
    FakeAgent,
    FakeEngine,
    call,
    open_run,
    post,
    publish,
    serve,
    until,
)

CONTROLLER = """
import asyncio, sys
from pathlib import Path
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.gateway import Gateway

async def main(port, folder):
    writer = LedgerWriter.open(Path(folder) / "ledger", "controller", "fleet", flush_interval_s=0.1)
    server = Gateway("127.0.0.1", port, models=["tiny"], state=Path(folder) / "state", writer=writer,
                     fleet_run_id="fleet", agent_token=sys.argv[3])
    await server.start()
    await asyncio.Event().wait()

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


class Process:
    def __init__(self, port, folder):
        self._arguments = (port, folder, AGENT_TOKEN)
        self._stack, self._process = ExitStack(), None
        self.url = f"http://127.0.0.1:{port}"

    async def start(self, session):
        self._process, _ = self._stack.enter_context(programs.started(CONTROLLER, *self._arguments))
        async with asyncio.timeout(20):
            while True:
                try:
                    await call(session, "GET", "/health")
                    return
                except aiohttp.ClientError:
                    assert self._process.is_alive()
                    await asyncio.sleep(0.02)

    def kill(self):
        if self._process is not None:
            self._process.kill()
            self._stack.close()
            self._process = None


class Agent(FakeAgent):
    async def beat(self, hold_s=0.0):
        try:
            await super().beat(hold_s)
        except aiohttp.ClientError:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def controlled(folder):
    port = free_port()
    process = Process(port, folder)
    engine = FakeEngine(0.02)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session, serve(engine) as url:
        await process.start(session)
        agent = Agent(session, engine, url, capacity=64)
        beating = asyncio.create_task(agent.run())
        try:
            yield process, session, agent
        finally:
            beating.cancel()
            process.kill()


async def turn(session, run_id, number, tokens=20):
    body = {
        "input_ids": [number],
        "sampling_params": {"max_new_tokens": tokens},
        "rose": {"trajectory_id": f"t{number}", "turn": 0, "key": f"k{number}"},
    }
    while True:
        try:
            return await post(session, f"/runs/{run_id}/generate", body)
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(0.05)


async def test_a_controller_that_was_killed_knows_everything_again(tmp_path):
    async with controlled(tmp_path) as (process, session, agent):
        opened = await open_run(session, team="research", tags={"project": "x"})
        run_id = opened["run_id"]
        await publish(session, opened, 6, token="of-the-store")
        ended = await open_run(session, "ended")
        await call(session, "DELETE", f"/runs/{ended['run_id']}", {"fence": 1})
        resumed = await open_run(session, resume=run_id)
        first = await turn(session, run_id, 0)
        # Twenty turns under way: the second half was never heard of by the time of the kill.
        turns = [asyncio.create_task(turn(session, run_id, number)) for number in range(1, 21)]
        await until(lambda: agent.engine.running)
        process.kill()
        await process.start(session)
        for status, answer in [first, *[await asyncio.wait_for(task, 20) for task in turns]]:
            assert (status, answer["output_ids"]) == (200, list(range(1, 21)))
            assert answer["meta_info"]["rose"]["versions"] == [6] * 20
        requests = len(agent.engine.requests)
        assert await turn(session, run_id, 0) == first
        assert len(agent.engine.requests) == requests
        _, shown = await call(session, "GET", f"/runs/{run_id}")
        assert (shown["state"], shown["version"], shown["fence"], shown["team"]) == ("open", 6, 2, "research")
        assert shown["tags"] == {"project": "x"}
        assert (shown["turns_completed"], shown["tokens"]) == (21, 21 * 20)
        process.kill()
        await process.start(session)
        _, shown = await call(session, "GET", f"/runs/{run_id}")
        assert (shown["turns_completed"], shown["tokens"]) == (21, 21 * 20)
        status, answer = await publish(session, opened, 7)
        assert (status, answer["error"]["type"] == "RunTaken") == (409, True)
        assert await publish(session, resumed, 7) == (200, {})
        assert (await call(session, "GET", f"/runs/{ended['run_id']}"))[1]["state"] == "closed"
        # The engine kept its weights: it is not brought to them again.
        assert [target["version"] for target in agent.targets][:1] == [6]
        assert agent.targets[0]["token"] == "of-the-store"
        await call(session, "DELETE", f"/runs/{run_id}", {"fence": 2})
        await asyncio.sleep(0.5)  # until the ledger's flush interval is over
    turns = "SELECT trajectory_id, count(*) FROM turn WHERE run_id = ? AND outcome = 'completed' GROUP BY 1"
    assert dict(ask(tmp_path / "ledger", turns, [run_id])) == {f"t{number}": 1 for number in range(21)}
    assert ask(tmp_path / "ledger", "SELECT status FROM run WHERE run_id = ?", [run_id]) == [("ended",)]


#: What an engine makes of each prompt before the controller dies, and after.
BEFORE = list(range(100, 120))
AFTER = {1: list(range(200, 220)), 2: [100, 101, *range(202, 220)], 3: [100]}


async def test_a_stream_whose_turn_the_controller_lost_says_that_it_is_made_anew(tmp_path):
    async with controlled(tmp_path) as (process, session, agent):
        agent.engine.tokens = lambda body: BEFORE
        opened = await open_run(session)
        await publish(session, opened)
        address = RunAddress(url=process.url, run_id=opened["run_id"], fence=1)
        streamed = {number: [] for number in AFTER}

        async def stream(number):
            async for part in turns.stream([number], {"max_new_tokens": 20}, trajectory_id=f"t{number}"):
                streamed[number].append(part)

        async with TurnClient(address) as turns:
            streaming = [asyncio.create_task(stream(number)) for number in AFTER]
            await until(lambda: all(len(parts) >= 3 for parts in streamed.values()))
            process.kill()
            assert not any(task.done() for task in streaming)
            agent.engine.tokens = lambda body: AFTER[body["input_ids"][0]]
            await process.start(session)
            await asyncio.gather(*streaming)
    for number, parts in streamed.items():
        begins = [part.anew for part in parts].index(True)
        assert [token for part in parts[:begins] for token in part.output_ids][:3] == BEFORE[:3]
        generation = parts[-1].generation
        assert generation.output_ids == AFTER[number]
        for name in ("output_ids", "logprobs", "versions"):
            streamed_values = [value for part in parts[begins:] for value in getattr(part, name)]
            assert streamed_values == getattr(generation, name), f"{name} of {number}"
        assert not any(part.anew for part in parts[begins + 1 :])
