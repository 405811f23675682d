"""The process `owner STATE LOCK`, which runs ROSE's own serving engines. LOCK is the descriptor of a locked file."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rose import private_files
from rose.config import FleetConfig
from rose.errors import UserError
from rose.ledger.files.layout import is_locked
from rose.runtime import places, preflight
from rose.runtime.engines import leftovers, ports
from rose.runtime.engines.adoption import DetachedProcess
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.sglang import AddressInUseError, EngineProcess, EngineSpec
from rose.runtime.errors import DeploymentError
from rose.runtime.fleet import FleetPlan, host_cores
from rose.runtime.host_plan import HostPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.service.process import log_to

_PLAN, _RECORD, _LOCK = "serving.plan.json", "serving.json", "serving.lock"
_FREE = "serving.free.json"  # In the folder of pages: free GPU bytes before the first engine.
#: Settings of a device and of section `serving` that determine an engine.
_OF_DEVICE = {"id", "gpu", "cores", "kv_bytes", "serving_url"}
_OF_SECTION = {"model", "port", "max_total_tokens", "extra_args"}
_MODULE = __name__
_LOOK_S = 0.5
_AGAIN_S = 5.0
_STOP_TIMEOUT_S = 40.0


def served(plan: HostPlan) -> list[str]:
    return [device.id for device in plan.own.device if device.pool == "serving" and device.serving_url is None]


def ensure(plan: HostPlan) -> dict[str, str]:
    """Start this plan's owner process, unless it runs already. Return the URLs of the engines that answer."""
    state = plan.state
    places.make_state(state)
    if runs(plan) and not _serves(plan):
        stop(plan)
    with (state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return urls(plan)
        planned = {"config": plan.config.model_dump(mode="json"), "host": plan.host, "run_id": plan.run_id}
        private_files.write(state / _PLAN, json.dumps(planned))
        record = {"urls": {}, "failures": {}, "fork_server": None, "ports": _last_record(state).get("ports", {})}
        private_files.write(state / _RECORD, json.dumps(record))
        # Ray ends this process with its attached children.
        command = ["setsid", "--fork", sys.executable, "-m", _MODULE, str(state), str(lock.fileno())]
        null = subprocess.DEVNULL
        started = subprocess.run(command, check=False, stdin=null, stdout=null, pass_fds=[lock.fileno()])
    if started.returncode:
        problem = f"the serving engines' process did not start (exit code {started.returncode} of setsid)"
        raise DeploymentError(f"{problem}: end other processes, or free memory on this host")
    return {}


def urls(plan: HostPlan) -> dict[str, str]:
    return dict(_record(plan).get("urls", {}))


def failures(plan: HostPlan) -> dict[str, str]:
    return dict(_record(plan).get("failures", {}))


def fork_server(plan: HostPlan) -> Path | None:
    path = _record(plan).get("fork_server")
    return None if path is None else Path(path)


def stop(plan: HostPlan) -> None:
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while runs(plan):
        # A starting owner has no recorded pid yet.
        pid = _last_record(plan.state).get("pid")
        process = None if pid is None else DetachedProcess.open(pid)
        # Open the handle first: this pid is the owner while the lock is taken.
        if process is not None and runs(plan):
            process.send_signal(signal.SIGTERM)
        if time.monotonic() > deadline_s:
            problem = f"the process of the serving engines did not end within {_STOP_TIMEOUT_S:.0f} s"
            raise DeploymentError(f"{problem}: end the process with {plan.state / _LOCK} open (`fuser` shows it)")
        time.sleep(_LOOK_S / 5)
    for kept in (plan.state / _RECORD, plan.memory / _FREE):
        kept.unlink(missing_ok=True)


def runs(plan: HostPlan) -> bool:
    return is_locked(plan.state / _LOCK)


def free_bytes(memory: MemoryPlan, file: Path) -> dict[str, int]:
    """Return how many bytes each GPU had free before the first engine started. `file` keeps these numbers."""
    with suppress(OSError, ValueError):
        recorded: dict[str, int] = json.loads(file.read_text())
        if recorded.keys() == {device.id for device in memory.config.device if device.gpu is not None}:
            return recorded
    free = preflight.check_gpus(memory)
    file.write_text(json.dumps(free))
    return free


def _serves(plan: HostPlan) -> bool:
    """Return whether the owner process runs this plan, or a plan that this version of ROSE cannot read."""
    with suppress(OSError, ValueError):
        return _serving(_planned(plan.state)) == _serving(plan)
    return True


def _serving(plan: HostPlan) -> object:
    own = plan.own
    return [
        (device.model_dump(include=_OF_DEVICE), own.serving_on(device).model_dump(include=_OF_SECTION))
        for device in own.device
        if device.pool == "serving"
    ]


def _planned(state: Path) -> HostPlan:
    planned = json.loads((state / _PLAN).read_text())
    config = FleetConfig.model_validate_json(json.dumps(planned["config"]))
    return HostPlan(config=config, host=planned["host"], run_id=planned["run_id"], controller_url="")


def _record(plan: HostPlan) -> dict[str, Any]:
    return _last_record(plan.state) if runs(plan) else {}


def _last_record(state: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        record: dict[str, Any] = json.loads((state / _RECORD).read_text())
        return record
    return {}


class _Owner:
    def __init__(self, plan: HostPlan, make_engine: Callable[[EngineSpec], EngineProcess]) -> None:
        self._plan = plan
        self._make_engine = make_engine
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}
        self._ports: dict[str, int] = _last_record(plan.state).get("ports", {})
        for port in self._ports.values():
            ports.claim(port)
        self._making = threading.Lock()
        self._fleet: FleetPlan | None = None
        self._specs: dict[str, EngineSpec] = {}
        self._starting: dict[str, EngineProcess] = {}
        self._failures: dict[str, str] = {}
        self._fork_server: ForkServer | None = None
        self._unwritten: str | None = None
        self._say = log_to(plan.logs / "serving-owner.log")

    def run(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stopping.set())
        self._write()
        own = self._plan.own
        self._plan.make_memory()
        if any(device.gpu is None for device in own.device):
            try:
                cores = sorted(host_cores(own.device))
                path, log = self._plan.memory / "engines", self._plan.logs / "forkserver.log"
                self._fork_server = ForkServer.start(path, log, cores=cores)
            except OSError as error:
                self._say(f"engines start without a fork server, which takes longer: {error}")
        threads = [threading.Thread(target=self._serve, args=[device_id]) for device_id in served(self._plan)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                if self._stopping.is_set():
                    # An engine may wait minutes for a loading fork server, or load for minutes itself.
                    if self._fork_server is not None:
                        self._fork_server.stop()
                    for engine in list(self._starting.values()):
                        engine.kill()
                with self._lock:
                    if self._unwritten is not None:
                        self._write()
        if self._fork_server is not None:
            self._fork_server.stop()

    def _serve(self, device_id: str) -> None:
        while not self._stopping.is_set():
            try:
                self._live(device_id)
            except Exception as error:
                if self._stopping.is_set():
                    return
                text = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
                self._say(f"{device_id}: {text}")
                self._tell(device_id, None, text)
                self._stopping.wait(_AGAIN_S)

    def _live(self, device_id: str) -> None:
        spec = self._spec(device_id)
        engine = self._starting[device_id] = self._make_engine(spec)
        try:
            engine.launch()
            engine.wait_ready()
            engine.settle()
            del self._starting[device_id]
            self._tell(device_id, spec, None)
            while not self._stopping.wait(_LOOK_S):
                if not engine.alive:
                    raise DeploymentError(f"{spec.engine_id} died. See {spec.log}:\n{engine.log_tail()}")
        except AddressInUseError:
            if (elsewhere := spec.elsewhere()) is None:
                raise
            self._specs[device_id] = elsewhere
            taken = f"port {spec.port} of serving on {device_id} was taken"
            self._say(f"{taken}: it is started again at {elsewhere.url}")
        finally:
            engine.stop()

    def _spec(self, device_id: str) -> EngineSpec:
        """Return how to start a device's engine. One device at a time claims ports and GPU memory. If clients already
        know the engine's port, it stays the same."""
        with self._making:
            if device_id not in self._specs:
                self._fleet = self._fleet or self._plan_fleet()
                own = self._plan.own
                spec = self._fleet.serving(next(device for device in own.device if device.id == device_id))
                port = self._ports.get(device_id, spec.port) if spec.any_port else spec.port
                self._specs[device_id] = replace(spec, port=port)
        spec = self._specs[device_id]
        return replace(spec, any_port=spec.any_port and device_id not in self._ports)

    def _plan_fleet(self) -> FleetPlan:
        plan = self._plan
        memory = MemoryPlan.resolve(plan.own, self._say)
        return FleetPlan(
            host=plan,
            memory=memory,
            fork_server=None if self._fork_server is None else self._fork_server.path,
            free_bytes=free_bytes(memory, plan.memory / _FREE),
        )

    def _tell(self, device_id: str, spec: EngineSpec | None, why_not: str | None) -> None:
        with self._lock:
            if spec is not None:
                self._urls[device_id] = spec.url
                self._ports[device_id] = spec.port
            self._failures.pop(device_id, None)
            if why_not is not None:
                self._failures[device_id] = why_not
            self._write()

    def _write(self) -> None:
        record = {
            "pid": os.getpid(),
            "urls": {name: url for name, url in self._urls.items() if name not in self._failures},
            "failures": self._failures,
            "ports": self._ports,
            "fork_server": None if self._fork_server is None else str(self._fork_server.path),
        }
        try:
            private_files.write(self._plan.state / _RECORD, json.dumps(record))
            self._unwritten = None
        except OSError as error:
            if self._unwritten != str(error):
                self._say(f"{self._plan.state / _RECORD} cannot be written, retrying: {error}")
            self._unwritten = str(error)


def main(make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess) -> None:
    state, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)  # Open until this process ends; children must not inherit it.
    leftovers.remove_unused()
    _Owner(_planned(state), make_engine).run()


if __name__ == "__main__":
    main()
