import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import DetachedProcess, start_detached
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess, EngineSpec, require_free_port

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


_LASTING_SERVER = """
import sys, threading, time
from http.server import ThreadingHTTPServer
from pathlib import Path
from rose.clock import monotonic_ns
from rose.runtime.coserving.questions import TAKEN, parse_question
from rose.runtime.coserving.page import ArbiterPage, Party, Span, SpanRecord
from rose.runtime.engines import adoption
from tests.runtime.coserving.json_server import JsonHandler
adoption.watch_from_within()
page = ArbiterPage.attach(Path(sys.argv[2]), Party.ROLLOUT)

class Handler(JsonHandler):
    def do_POST(self):
        body = self.body()
        if parse_question(body.get("rid", "")) is not None:
            self.answer({"output_ids": [], "meta_info": {"finish_reason": {"type": "abort", "message": TAKEN}}})
            return
        tokens = body["sampling_params"]["max_new_tokens"]
        time.sleep(0.02 * tokens)
        self.answer({"output_ids": list(range(tokens)), "meta_info": {"finish_reason": {"type": "length"}}})

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    began = monotonic_ns()
    time.sleep(0.02)
    page.write_span(Party.ROLLOUT, SpanRecord(Span.ROLLOUT, began, monotonic_ns()))
"""


class StandInEngine(EngineProcess):
    """If a file lies at `<log>.broken`, the process ends at once."""

    def launch(self) -> None:
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        script = "raise SystemExit('broken')" if broken(self.spec).exists() else _SERVER
        with self.spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", script, str(self.spec.port)], stderr=log, start_new_session=True
            )


class LastingEngine(EngineProcess):
    """Outlives its agent. A turn takes 20 ms for each token."""

    def launch(self) -> None:
        spec = self.spec
        require_free_port(spec.port, f"engine {spec.engine_id}")
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            arguments = ["-c", _LASTING_SERVER, str(spec.port), str(spec.plugin.page)]
            environment = {**os.environ, **adoption.environment(spec)}
            self._process = DetachedProcess.open(start_detached(arguments, environment, log))


def broken(spec: EngineSpec) -> Path:
    return spec.log.with_suffix(".broken")


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Hold a port that refuses every connection."""
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
        capacity=4,
        kv_bytes_per_token=2,
    )
