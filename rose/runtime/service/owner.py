"""`python -m rose.runtime.service.owner STATE LOCK`: serving engines of ROSE's own, run as their owner would run them.

For devices whose fleet file names no `serving_url`: a demo, a host that serves nobody yet. The process is nobody's
child: controller, agents and Ray come and go, and serving goes on until it is told to stop. What it serves is
attached to like any other server.

Whoever starts it takes its lock first and hands it on, `LOCK` being the descriptor: whether the process runs is whether
the lock is taken. That holds from the first moment to the last, and no clock is in it.
"""

from __future__ import annotations

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
from rose.clock import Anchor
from rose.config import FleetConfig
from rose.errors import UserError
from rose.ledger.layout import is_locked
from rose.runtime import preflight
from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines import leftovers, models, ports
from rose.runtime.engines.adoption import DetachedProcess
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.errors import DeploymentError
from rose.runtime.fleet import FleetPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.service import places
from rose.runtime.service.places import HostPlan
from rose.runtime.service.process import log_to
from rose.runtime.serving import ServingDevice, ServingEngines

_PLAN, _RECORD, _LOCK = "serving.plan.json", "serving.json", "serving.lock"
#: In the folder of pages: what was free on GPUs before it started its first engine.
_FREE = "serving.free.json"
#: What an engine is started by, of a device that serves and of the section `serving`.
_OF_DEVICE = {"id", "gpu", "cores", "kv_bytes", "serving_url"}
_OF_SECTION = {"model", "port", "max_total_tokens", "extra_args"}
_MODULE = __name__
_LOOK_S = 0.5
_AGAIN_S = 5.0
_STOP_TIMEOUT_S = 40.0


def served(plan: HostPlan) -> list[str]:
    """The host's devices that serving engines of ROSE's own are to serve."""
    return [device.id for device in plan.own.device if device.pool == "serving" and device.serving_url is None]


def ensure(plan: HostPlan) -> dict[str, str]:
    """Have the host's owner process run, and return the URLs of the devices' engines that answer by now. Engines of one
    that died come back at their ports. One that outlived a fleet with other serving is ended in order first.

    Raises DeploymentError if it does not start, or the other one does not end, and FolderError.
    """
    state = plan.state
    places.make_state(state)
    if runs(plan) and not _serves(plan):
        stop(plan)
    with (state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return urls(plan)
        planned: dict[str, Any] = {
            "config": plan.config.model_dump(mode="json"),
            "host": plan.host,
            "run_id": plan.run_id,
        }
        private_files.write(state / _PLAN, json.dumps(planned))
        # Of what the one before said, this one goes on with the ports.
        _put(state, {"urls": {}, "failures": {}, "fork_server": None, "ports": _ports(_last_record(state))})
        # Forked off: whoever ends this process and its children, as Ray does, has none of it.
        command = ["setsid", "--fork", sys.executable, "-m", _MODULE, str(state), str(lock.fileno())]
        started = subprocess.run(
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[lock.fileno()]
        )
    if started.returncode:
        raise DeploymentError(
            f"{command[0]} ended with exit code {started.returncode}: see to what the host is short of"
        )
    return {}


def urls(plan: HostPlan) -> dict[str, str]:
    """Where the engines answer that the owner process runs, by device; none if it does not run."""
    record = _record(plan)
    return {} if record is None else dict(record["urls"])


def failures(plan: HostPlan) -> dict[str, str]:
    """Why engines do not serve that do not, by device."""
    record = _record(plan)
    return {} if record is None else dict(record["failures"])


def fork_server(plan: HostPlan) -> Path | None:
    """Where rollout engines on CPU cores can be forked from as well."""
    record = _record(plan)
    return None if record is None or record["fork_server"] is None else Path(record["fork_server"])


def stop(plan: HostPlan) -> None:
    """End the owner process and its engines; returns when they are gone. Raises DeploymentError if they stay."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while runs(plan):
        # One that is being started has not said its number yet.
        pid = _last_record(plan.state).get("pid")
        process = None if pid is None else DetachedProcess.open(pid)
        # The handle first: what has this number while the lock is taken is the owner.
        if process is not None and runs(plan):
            process.send_signal(signal.SIGTERM)
        if time.monotonic() > deadline_s:
            raise DeploymentError(
                f"the process of the serving engines of host {plan.host!r} did not end within {_STOP_TIMEOUT_S:.0f} s: "
                f"end what has {plan.state / _LOCK} open (`fuser` names it)"
            )
        time.sleep(_LOOK_S / 5)
    # Whoever starts the next one wants it as the fleet file has it then.
    for kept in (plan.state / _RECORD, plan.memory / _FREE):
        kept.unlink(missing_ok=True)


def runs(plan: HostPlan) -> bool:
    """Whether the host's owner process runs, or is being started."""
    return is_locked(plan.state / _LOCK)


def free_bytes(memory: MemoryPlan, kept: Path) -> dict[str, int]:
    """Bytes that were free on the host's GPUs when this was first asked, which is kept in a file: later it would count
    what was started since."""
    with suppress(OSError, ValueError):
        before: dict[str, int] = json.loads(kept.read_text())
        if before.keys() == {device.id for device in memory.config.device if device.gpu is not None}:
            return before
    free = preflight.check_gpus(memory)
    kept.write_text(json.dumps(free))
    return free


def _serves(plan: HostPlan) -> bool:
    """Whether the owner process that runs was started for the same serving. Plans are compared as this version reads
    them: of one that it cannot read that is not known, and what serves goes on."""
    with suppress(OSError, ValueError):
        return _serving(_planned(plan.state)) == _serving(plan)
    return True


def _serving(plan: HostPlan) -> object:
    """What the host's serving engines are started by."""
    own = plan.own
    devices = [device.model_dump(include=_OF_DEVICE) for device in own.device if device.pool == "serving"]
    return devices, own.serving.model_dump(include=_OF_SECTION)


def _planned(state: Path) -> HostPlan:
    """What the owner process was told. Raises OSError and ValueError."""
    planned = json.loads((state / _PLAN).read_text())
    config = FleetConfig.model_validate_json(json.dumps(planned["config"]))
    return HostPlan(config=config, host=planned["host"], run_id=planned["run_id"], controller_url="")


def _record(plan: HostPlan) -> dict[str, Any] | None:
    """What the owner process that runs says of itself; None if none does, or it has said nothing yet."""
    return _last_record(plan.state) or None if runs(plan) else None


def _last_record(state: Path) -> dict[str, Any]:
    """What an owner process said last, whether or not it runs."""
    try:
        record: dict[str, Any] = json.loads((state / _RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record


def _put(state: Path, record: dict[str, Any]) -> None:
    partial = state / f".{_RECORD}.partial"
    partial.write_text(json.dumps(record))
    partial.replace(state / _RECORD)


def _ports(record: dict[str, Any]) -> dict[str, int]:
    """Return the ports at which devices' engines have answered, now or before."""
    ports: dict[str, int] = record.get("ports", {})
    return ports


def _port(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


class _Owner:
    """The process. Each device has a thread, which its engine lives and dies with."""

    def __init__(self, plan: HostPlan, make_engine: Callable[[EngineSpec], EngineProcess]) -> None:
        self._plan = plan
        self._make_engine = make_engine
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}
        #: Where engines have answered, of whom users and agents know it.
        self._ports = _ports(_last_record(plan.state))
        for port in self._ports.values():
            ports.claim(port)
        self._making = threading.Lock()
        self._fleet: FleetPlan | None = None
        self._devices: dict[str, ServingDevice] = {}
        self._failures: dict[str, str] = {}
        self._fork_server: ForkServer | None = None
        #: Why what is so now is not on record.
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
                self._fork_server = ForkServer.start(self._plan.memory / "engines", self._plan.logs / "forkserver.log")
            except OSError as error:
                self._say(f"engines start without a fork server, which takes longer: {error}")
        threads = [threading.Thread(target=self._serve, args=[device_id]) for device_id in served(self._plan)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                if self._stopping.is_set() and self._fork_server is not None:
                    # An engine may wait for it, which may load for minutes; those that it forked need it no more.
                    self._fork_server.stop()
                with self._lock:
                    if self._unwritten is not None:
                        self._write()
        if self._fork_server is not None:
            self._fork_server.stop()

    def _serve(self, device_id: str) -> None:
        """Keep one device's engine until it is time to stop, whatever comes in between."""
        while not self._stopping.is_set():
            try:
                self._live(self._device(device_id))
            except KeyboardInterrupt:
                pass
            except Exception as error:
                text = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
                self._say(f"{device_id}: {text}")
                self._tell(device_id, None, text)
                self._stopping.wait(_AGAIN_S)

    def _live(self, device: ServingDevice) -> None:
        """One life of the device's engine, to its end. Raises what ended it, or kept it from starting."""
        device_id = device.device_id
        engines = ServingEngines([device], say=self._say, make=self._make_engine)
        try:
            engines.launch()
            engines.wait_ready(self._tend)
            self._tell(device_id, engines.url(device_id), None)
            while not self._stopping.wait(_LOOK_S):
                engines.check()
        finally:
            self._devices[device_id] = self._at(device, _port(engines.url(device_id)))
            engines.stop()

    def _device(self, device_id: str) -> ServingDevice:
        """What is to serve on a device. Made once: each that is made claims a port for as long as this process lives,
        and what is free on a GPU is no more so once an engine is there."""
        with self._making:
            if device_id not in self._devices:
                if self._fleet is None:
                    self._fleet = self._plan_fleet()
                own = self._plan.own
                device = self._fleet.serving(next(device for device in own.device if device.id == device_id))
                assert device is not None
                assert device.spec is not None
                # As an owner's server starts: attached to no page, and to be attached by whoever has one.
                spec = replace(device.spec, plugin=PluginSettings("serving", None))
                port = self._ports.get(device_id, spec.port) if spec.any_port else spec.port
                self._devices[device_id] = self._at(replace(device, spec=spec), port)
            return self._devices[device_id]

    def _at(self, device: ServingDevice, port: int) -> ServingDevice:
        """The same at a port, and at no other once it answered there: an engine that comes back is looked for there."""
        assert device.spec is not None
        any_port = device.spec.any_port and device.device_id not in self._ports
        spec = replace(device.spec, port=port, any_port=any_port)
        return replace(device, url=spec.url, spec=spec)

    def _plan_fleet(self) -> FleetPlan:
        plan, own = self._plan, self._plan.own
        cache = own.cache.expanduser()
        memory = MemoryPlan(
            config=own,
            serving_model=models.resolve(own.serving.model, cache, self._say),
            rollout_model=models.resolve(own.rollout.model, cache, self._say),
        )
        return FleetPlan(
            config=own,
            run_id=plan.run_id,
            anchor=Anchor.take(),
            folder=plan.memory,
            logs=plan.logs,
            serving_model=memory.serving_model,
            rollout_model=memory.rollout_model,
            gateway_url="",
            fork_server=None if self._fork_server is None else self._fork_server.path,
            free_bytes=free_bytes(memory, plan.memory / _FREE),
        )

    def _tend(self) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt

    def _tell(self, device_id: str, url: str | None, why_not: str | None) -> None:
        with self._lock:
            if url is not None:
                self._urls[device_id] = url
                self._ports[device_id] = _port(url)
            self._failures.pop(device_id, None)
            if why_not is not None:
                self._failures[device_id] = why_not
            self._write()

    def _write(self) -> None:
        """Put on record how it is. Where that fails, on a full disk, engines are looked after all the same."""
        record = {
            "pid": os.getpid(),
            "urls": {name: url for name, url in self._urls.items() if name not in self._failures},
            "failures": self._failures,
            "ports": self._ports,
            "fork_server": None if self._fork_server is None else str(self._fork_server.path),
        }
        try:
            _put(self._plan.state, record)
            self._unwritten = None
        except OSError as error:
            if self._unwritten != str(error):
                self._say(f"{self._plan.state / _RECORD} cannot be written, which is tried again: {error}")
            self._unwritten = str(error)


def main(make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess) -> None:
    state, lock = Path(sys.argv[1]), int(sys.argv[2])
    # It stays open for as long as this process lives, and nothing that is started here has it.
    os.set_inheritable(lock, False)
    leftovers.remove_unused()
    _Owner(_planned(state), make_engine).run()


if __name__ == "__main__":
    main()
