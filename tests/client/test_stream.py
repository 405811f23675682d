"""A streamed turn whose line breaks off, against the real controller."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from rose.client.address import RunAddress
from rose.client.control import call
from rose.client.turns import TurnClient
from tests.client.fleet import MODEL, Engine, fleet


@asynccontextmanager
async def turns_of(there):
    """A client of a run that has published."""

    def opened():
        run = call(there.url, "POST", "/runs", {"name": "grpo", "model": MODEL})
        version = {"fence": run["fence"], "version": 7, "url": "http://store"}
        call(there.url, "POST", f"/runs/{run['run_id']}/versions", version)
        return RunAddress(url=there.url, run_id=run["run_id"], fence=run["fence"])

    async with TurnClient(await asyncio.to_thread(opened)) as turns:
        yield turns


def test_a_turn_whose_line_breaks_off_is_taken_up_where_it_was(tmp_path):
    engine = Engine(pause_s=0.1)

    async def scenario():
        parts = []
        async with turns_of(there) as turns:
            async for part in turns.stream([7], {"max_new_tokens": 6}):
                parts.append(part)
                if len(parts) == 3:
                    (connection,) = turns._session.connector._acquired
                    connection.transport.abort()
        return parts

    with fleet(tmp_path, engine) as there:
        *parts, last = asyncio.run(scenario())
    assert len(engine.requests) == 1
    assert not any(part.anew for part in parts)
    for name in ("output_ids", "logprobs", "versions"):
        assert [value for part in parts for value in getattr(part, name)] == getattr(last.generation, name)
    assert last.generation.output_ids == [1, 2, 3, 4, 5, 6]
    assert last.generation.versions == [7] * 6
