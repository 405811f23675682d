"""Engines that play FrozenLake: `serving`, `rollout PORT PAGE`, or `up FLEET_FILE ADDRESS` for a fleet."""

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import PageError, Party, Span, SpanRecord
from rose.runtime.coserving.questions import TAKEN, parse_question
from rose.runtime.rollout import vocabulary
from rose.runtime.weight_version import weights_name
from rose.transfer.package.manifest import Manifest
from tests.runtime.coserving.owned_server import Owner, served
from tests.runtime.loads import IDLE
from tests.runtime.scheduling.stand_ins import FakeEngine, left_of
from tests.runtime.service import stand_ins

TOKEN_S = 0.02
_SPAN_S = 0.02


class Player(stand_ins.StandIn):
    module = __name__


class Holder(FakeEngine):
    def __init__(self, staging, pause_s):
        super().__init__(pause_s)
        self.staging, self.prepared = staging, None

    async def generate(self, request):
        rid = (await request.json()).get("rid", "")
        question = parse_question(rid)
        if not rid:
            # Who started it asks for no more than that it answers.
            return web.json_response({})
        if question is None or question[0] == "end":
            return await super().generate(request)
        self.take(question[0], int(question[1]))
        return web.json_response(
            {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": TAKEN}}}
        )

    def take(self, verb, version):
        if verb == "prepare":
            *_, last = sorted((self.staging / f"v{version}").glob("*.json"))
            self.prepared = weights_name(Manifest.from_bytes(last.read_bytes()).run_id, version)
        elif verb == "commit":
            self.version = self.prepared
        report = stand_ins.HAS_THEM | {"after_step": 1, "name": self.version}
        partial = self.staging / f"{version}.{verb}.0.partial"
        partial.write_text(json.dumps(report))
        partial.rename(partial.with_suffix(".json"))


class Engine(Holder):
    def tokens(self, body):
        return [random.choice(vocabulary.MOVES[1:3]), vocabulary.EOT][: left_of(body)]


async def rollout(port: int, path: Path) -> None:
    engine = Engine(path.parent / "staging", TOKEN_S)
    page = await stand_ins.begin(port, path, engine.generate)
    while True:
        began_ns = monotonic_ns()
        await asyncio.sleep(_SPAN_S)
        if engine.running:
            page.write_span(Party.ROLLOUT, SpanRecord(Span.ROLLOUT, began_ns, monotonic_ns()))


def serving() -> None:
    owner = Owner()
    with served(owner, stand_ins.SERVING_PORT) as url:
        print(url, flush=True)
        while True:
            time.sleep(4 * _SPAN_S)
            page, began_ns = owner.page, monotonic_ns()
            time.sleep(_SPAN_S)
            with suppress(PageError, ValueError):
                if page is not None:
                    page.set_load(IDLE)
                    page.write_span(Party.SERVING, SpanRecord(Span.SERVING, began_ns, monotonic_ns()))


if __name__ == "__main__":
    # Under the name that a host's process knows it by.
    from tests.runtime.service import players

    what, *arguments = sys.argv[1:]
    if what == "rollout":
        asyncio.run(players.rollout(int(arguments[0]), Path(arguments[1])))
    elif what == "serving":
        players.serving()
    else:
        stand_ins.up(arguments[0], arguments[1], players.Player)
