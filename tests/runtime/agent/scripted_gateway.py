import threading
import time
from http.server import ThreadingHTTPServer

from rose.runtime.engines.ports import free_port
from rose.runtime.scheduling.messages import Heartbeat, HeartbeatReply, PreemptReply, PreemptRequest, Target
from tests.runtime.coserving.json_server import JsonHandler


class ScriptedGateway:
    def __init__(self, port=None):
        self.heard: list[Heartbeat] = []
        self.preempted: list[PreemptRequest] = []
        self._changed = threading.Condition()
        self._seq, self._wanted, self._step, self._targets = 1, {}, None, {}
        self.drained, self.train_run_id, self.rollout_run_ids, self.models, self.terms = False, None, {}, {}, None
        gateway = self

        class Handler(JsonHandler):
            def do_POST(self):
                if self.path == "/heartbeat":
                    answer = gateway.heartbeat(Heartbeat.model_validate(self.body()))
                else:
                    answer = gateway.preempt(PreemptRequest.model_validate(self.body()))
                self.answer(answer.model_dump(mode="json"))

        self.port = port or free_port()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.port}"

    def want(self, step=None, **wanted):
        """From now on it wants these engines, for nanoseconds (`_` stands for `-`)."""
        with self._changed:
            self._wanted = {name.replace("_", "-"): ns for name, ns in wanted.items()}
            self._seq, self._step = self._seq + 1, step
            self._changed.notify_all()

    def aim(self, **targets):
        with self._changed:
            self._targets = {
                name: Target(run_id=run_id, version=version, url=url, client_address="127.0.0.1")
                for name, (run_id, version, url) in targets.items()
            }
            self._seq += 1
            self._changed.notify_all()

    def heartbeat(self, heartbeat):
        deadline = time.monotonic() + heartbeat.hold_s
        with self._changed:
            self.heard.append(heartbeat)
            self._changed.notify_all()
            while self._seq == heartbeat.seen and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            leases = [report.lease_id for report in heartbeat.engines if self._wanted.get(report.engine_id)]
            return HeartbeatReply(
                seq=self._seq,
                renew=[lease for lease in leases if lease is not None],
                wanted_ns=self._wanted,
                step=self._step,
                targets=self._targets,
                drained=self.drained,
                train_run_id=self.train_run_id,
                rollout_run_ids=self.rollout_run_ids,
                models=self.models,
                terms=self.terms,
            )

    def preempt(self, request):
        with self._changed:
            self.preempted.append(request)
            self._changed.notify_all()
        return PreemptReply(requests=3, kv_tokens=10)

    def wait(self, condition, seconds=20.0):
        with self._changed:
            assert self._changed.wait_for(condition, seconds), "the gateway did not hear of it in time"

    def wait_until_heeded(self):
        """Until its agent has acted on what it wants now: the heartbeat after the next one follows that."""
        heard = len(self.heard)
        self.wait(lambda: len(self.heard) >= heard + 2)

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
