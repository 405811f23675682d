"""A stand-in for an engine that outlives its agent: a process with the page's section and an HTTP server."""

from __future__ import annotations

import os

from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import DetachedProcess, start_detached
from rose.runtime.engines.sglang import EngineProcess, require_free_port

_SCRIPT = """
import sys, threading, time
from http.server import ThreadingHTTPServer
from pathlib import Path
from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.asking import TAKEN, asked
from rose.runtime.coserving.page import ArbiterPage, Party, Span, SpanRecord
from rose.runtime.engines import adoption
from tests.runtime.coserving.json_server import JsonHandler
adoption.watch_from_within()
page = ArbiterPage.attach(Path(sys.argv[2]), Party.ROLLOUT)

class Handler(JsonHandler):
    def do_POST(self):
        body = self.body()
        if asked(body.get("rid", "")) is not None:
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


class LastingEngine(EngineProcess):
    """Works all the time; a turn takes 20 ms for each token."""

    def launch(self):
        spec = self.spec
        require_free_port(spec.port, f"engine {spec.engine_id}")
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            arguments = ["-c", _SCRIPT, str(spec.port), str(spec.plugin.page)]
            environment = {**os.environ, **adoption.environment(spec)}
            self._process = DetachedProcess.open(start_detached(arguments, environment, log))
