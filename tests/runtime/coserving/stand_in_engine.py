"""A process that starts in no time and answers as an engine does, for what happens around an engine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess, EngineSpec

_SERVER = """
import sys
from http.server import HTTPServer
from tests.runtime.coserving.json_server import JsonHandler

class Handler(JsonHandler):
    def do_POST(self):
        self.body()
        self.answer({"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}}})

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class StandInEngine(EngineProcess):
    """`launch` starts the server above; if a file lies at `<log>.broken` it ends at once instead."""

    def launch(self) -> None:
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        script = "raise SystemExit('broken')" if broken(self.spec).exists() else _SERVER
        with self.spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", script, str(self.spec.port)], stderr=log, start_new_session=True
            )


def broken(spec: EngineSpec) -> Path:
    return spec.log.with_suffix(".broken")


@contextmanager
def taken(port: int) -> Iterator[None]:
    """A port that is another's. It refuses every connection: one that is taken and not answered is waited for."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        yield


def stand_in_spec(folder: Path, engine_id: str = "r0") -> EngineSpec:
    return EngineSpec(
        engine_id=engine_id,
        model="none",
        model_name="stand-in",
        port=free_port(),
        max_total_tokens=100,
        plugin=PluginSettings("rollout", folder / "page", folder / "staging", gated=True),
        log=folder / f"{engine_id}.log",
    )
