import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

from rose.runtime import preflight
from rose.runtime.coserving.page import ArbiterPage, Party
from rose.runtime.engines import adoption, door
from rose.runtime.engines.adoption import DetachedProcess, start_detached
from rose.runtime.engines.sglang import EngineProcess

SERVING_PORT = 30000

# A host's process imports this with what it is to start: a machine that is full of other work has room for stand-ins.
preflight.ENGINE_BYTES = preflight.REST_BYTES = 64 << 20
#: What a rank reports of each phase of a sync.
HAS_THEM = {
    "ok": True,
    "ranks": 1,
    "after_step": 0,
    "sha256": "",
    "drift": None,
    "verify_ns": 1,
    "stage_ns": 1,
    "pause_ns": 1,
    "acknowledge_ns": 1,
}


class StandIn(EngineProcess):
    module = __name__

    def launch(self) -> None:
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        program = ["-m", self.module, "rollout", str(self.spec.port), str(self.spec.plugin.page)]
        with self.spec.log.open("ab") as log:
            environment = {
                **os.environ,
                **adoption.environment(self.spec),
                **door.environment(self.spec.door, self.spec.port),
            }
            self._process = DetachedProcess.open(start_detached(program, environment, log))

    def settle(self) -> None:
        """It may run anywhere."""


async def begin(port: int, path: Path, generate: Any) -> ArbiterPage:
    from aiohttp import web

    adoption.watch_from_within()
    door.open_from_within()
    page = ArbiterPage.attach(path, Party.ROLLOUT)
    app = web.Application()
    app.add_routes([web.post("/generate", generate)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return page


async def rollout(port: int, path: Path) -> None:
    from tests.runtime.service.players import Holder

    page = await begin(port, path, Holder(path.parent / "staging", 0.01).generate)
    assert page.alive(Party.ROLLOUT)
    await asyncio.Event().wait()


def serving() -> None:
    from tests.runtime.coserving.owned_server import Owner, served

    with served(Owner(), SERVING_PORT) as url:
        print(url, flush=True)
        threading.Event().wait()


def up(file: str, address: str | None = None, engine: type[EngineProcess] = StandIn) -> None:
    from rose import config
    from rose.runtime.service.up import up as start

    fleet = start(config.load(Path(file)), address, print, {"make_engine": engine})
    fleet.wait_ready(print)
    print("ready", fleet.remembered.url, flush=True)


if __name__ == "__main__":
    # Under the name that a host's process knows it by.
    from tests.runtime.service import stand_ins

    what, *arguments = sys.argv[1:]
    if what == "rollout":
        asyncio.run(stand_ins.rollout(int(arguments[0]), Path(arguments[1])))
    elif what == "serving":
        stand_ins.serving()
    else:
        stand_ins.up(*arguments)
