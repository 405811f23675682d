"""`STATE LOCK` owns serving engines, and `serve PORT STARTER` is one, unless `<log>.broken` exists."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from rose.config import FleetConfig
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.sglang import EngineProcess, require_free_port
from rose.runtime.host_plan import HostPlan
from rose.runtime.service import owner
from tests.runtime.coserving.owned_server import Owner, served
from tests.runtime.coserving.stand_in_engine import broken, taken

SHAPE = {
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 64,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
MODULE = "tests.runtime.service.own_serving"
_PR_SET_PDEATHSIG = 1
_held = ExitStack()  # Ports, until the owner ends.


def plan_of(folder: Path, controller_url: str = "http://127.0.0.1:9") -> HostPlan:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    device = {"device_class": "cpu-core", "cores": [0], "kv_bytes": 1_000_000}
    config = {
        "name": f"own-{os.getpid()}",
        "ledger": str(folder / "ledger"),
        "state": str(folder / "state"),
        "cache": str(folder / "cache"),
        "host": [{"name": "near", "address": "10.77.0.1"}, {"name": "far", "address": "10.77.0.2"}],
        "device": [
            {"id": "s", "host": "near", "pool": "serving", **device},
            {"id": "r", "host": "far", "pool": "rollout", **device},
        ],
        "serving": {"model": str(model)},
        "rollout": {"model": str(model)},
        "coserving": {"enabled": False, "heartbeat_s": 0.2, "meter_s": 0, "drift_audit_s": 0},
        "traffic": {"trace": "none"},
        "gateway": {"host": "0.0.0.0", "token": "a-token-of-the-tests"},
    }
    return HostPlan(
        config=FleetConfig.model_validate(config), host="near", run_id="fleet-1", controller_url=controller_url
    )


def record(plan: HostPlan) -> dict[str, Any]:
    return json.loads((plan.state / "serving.json").read_text())


@contextmanager
def host_running(runner: Any, *, leave: bool = False) -> Iterator[threading.Thread]:
    running = threading.Thread(target=runner.run)
    running.start()
    try:
        yield running
    finally:
        runner.stop(leave=leave)
        running.join()


def failing(plan: HostPlan) -> Path:
    return _marked(plan, ".broken")


def waiting(plan: HostPlan) -> Path:
    return _marked(plan, ".waiting")


def taking_port(plan: HostPlan) -> Path:
    return _marked(plan, ".taking")


def _marked(plan: HostPlan, suffix: str) -> Path:
    plan.logs.mkdir(parents=True, exist_ok=True)
    path = (plan.logs / "s-serving.log").with_suffix(suffix)
    path.touch()
    return path


class StandInServing(EngineProcess):
    def launch(self) -> None:
        if (wanted := self.spec.log.with_suffix(".waiting")).exists():
            wanted.write_text("it waits for the fork server")
            psutil.wait_procs([one for one in psutil.Process().children() if "600" in one.cmdline()])
        if (wanted := self.spec.log.with_suffix(".taking")).exists():
            wanted.rename(wanted.with_suffix(".taken")).write_text(str(self.spec.port))
            _held.enter_context(taken(self.spec.port))
        require_free_port(self.spec.port, f"engine {self.spec.engine_id}")
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        program = ["-c", "raise SystemExit('broken')"]
        if not broken(self.spec).exists():
            program = ["-m", MODULE, "serve", str(self.spec.port), str(os.getpid())]
        with self.spec.log.open("wb") as log:
            self._process = subprocess.Popen([sys.executable, *program], stdout=log, stderr=log, start_new_session=True)

    def settle(self) -> None:
        """It may run anywhere."""


def serve(port: int, starter: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        return
    with served(Owner(), port):
        threading.Event().wait()


def main() -> None:
    # A fork server would load SGLang.
    ForkServer.start = lambda path, *_, **__: ForkServer(path, subprocess.Popen(["sleep", "600"]))  # type: ignore[method-assign]
    owner._AGAIN_S = 0.1
    owner.main(StandInServing)


if __name__ == "__main__":
    # Under the name that others import it by.
    from tests.runtime.service import own_serving

    if sys.argv[1] == "serve":
        own_serving.serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        own_serving.main()
