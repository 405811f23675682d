"""`python -m benchmarks.faults.users URL SEED AHEAD_NS REPLAYED [CONTROLLER TOKEN]`: users of a host's serving. Prints
a line of JSON for each request and question. Times are of the machine's clock; the host's clock is `AHEAD_NS` ahead."""

import asyncio
import json
import sys
import threading
import urllib.request
from contextlib import suppress
from typing import Any

from benchmarks.faults.setting import SERVING
from rose.clock import monotonic_ns
from rose.config import ServingConfig, TrafficConfig
from rose.events import Event, Request
from rose.runtime.models import models
from rose.runtime.traffic.replay import Replay, Target
from rose.runtime.traffic.trace import fit, open_trace
from rose.terminal import echo

_TRACE = "bursty"
_LOOK_S = 0.5
_TIMEOUT_S = 5.0
_RUN = ("run_id", "team", "fence", "turns_in_flight")
_lock = threading.Lock()


def main() -> None:
    url, seed, ahead_ns, replayed, *controller = sys.argv[1:]
    users = Users(url, int(seed), int(ahead_ns), replayed == "1")
    threading.Thread(target=users.ask, args=["health", f"{url}/health", None], daemon=True).start()
    if controller:
        asking = ["controller", f"{controller[0]}/status", controller[1]]
        threading.Thread(target=users.ask, args=asking, daemon=True).start()
    asyncio.run(users.replay())


class Users:
    def __init__(self, url: str, seed: int, ahead_ns: int, replayed: bool) -> None:
        self._replayed = replayed
        self._url, self._seed, self._ahead_ns = url, seed, ahead_ns
        self._budgets = ServingConfig(**SERVING)

    async def replay(self) -> None:
        if not self._replayed:
            await asyncio.Event().wait()
        traffic = TrafficConfig(trace=_TRACE, seed=self._seed)
        trace = open_trace(traffic)
        assert trace is not None, "the sample trace is there"
        target = Target(url=self._url, model=models.SMOLLM2)
        await Replay(fit(trace, traffic), target, self._budgets, self._note, seed=self._seed, repeat=True).run()

    def _note(self, event: Event) -> None:
        assert isinstance(event, Request)
        failed = event.outcome != "completed"
        late = failed or event.ttft_ns is None or event.ttft_ns > (event.ttft_budget_ns or 0)
        late = late or (event.tpot_mean_ns is not None and event.tpot_mean_ns > (event.tpot_budget_ns or 0))
        now = monotonic_ns() - self._ahead_ns
        sent_ns = now - event.e2e_ns
        self._print("served", sent_ns=sent_ns, ended_ns=now, failed=failed, late=late, reason=event.reason)

    def ask(self, kind: str, url: str, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        while True:
            at_ns = monotonic_ns() - self._ahead_ns
            answer: bytes | None = None
            with suppress(OSError, ValueError):
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as got:
                    answer = got.read()
            status = {} if token is None or answer is None else _status(json.loads(answer))
            self._print(kind, at_ns=at_ns, well=answer is not None, **status)
            threading.Event().wait(_LOOK_S)

    def _print(self, kind: str, **values: Any) -> None:
        with _lock:
            echo(json.dumps({"kind": kind, **values}))
            sys.stdout.flush()


def _status(answer: dict[str, Any]) -> dict[str, Any]:
    devices = answer["devices"]
    return {
        "runs": [{name: run[name] for name in _RUN} for run in answer["runs"]],
        "clock_offsets_ns": {device["device_id"]: device["clock_offset_ns"] for device in devices},
    }


if __name__ == "__main__":
    main()
