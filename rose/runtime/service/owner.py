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
from dataclasses import replace
from pathlib import Path
from typing import Any

from rose import secret_file
from rose.clock import Anchor
from rose.config import FleetConfig
from rose.errors import UserError
from rose.runtime import preflight
from rose.runtime.coserving.hooks.settings import PluginSettings
from rose.runtime.engines import leftovers, models
from rose.runtime.engines.adoption import DetachedProcess
from rose.runtime.engines.forkserver import ForkServer
from rose.runtime.engines.sglang import EngineProcess, EngineSpec
from rose.runtime.errors import DeploymentError
from rose.runtime.fleet import FleetPlan
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.service.logs import log_to
from rose.runtime.service.places import HostPlan
from rose.runtime.serving import ServingDevice, ServingEngines

_PLAN, _RECORD, _LOCK = "serving.plan.json", "serving.json", "serving.lock"
_MODULE = __name__
_LOOK_S = 0.5
_AGAIN_S = 5.0
_STOP_TIMEOUT_S = 40.0
#: For so long it goes on after the process that it lives with.
_ALONE_S = 45.0


def served(plan: HostPlan) -> bool:
    """Whether the host has serving engines of ROSE's own to run."""
    return any(device.pool == "serving" and device.serving_url is None for device in plan.own.device)


def ensure(plan: HostPlan, lives_with: int | None = None) -> dict[str, str]:
    """Have the host's owner process run, and return the URLs of the devices' engines that answer by now. A while after
    the end of the process `lives_with`, it ends by itself."""
    state = plan.state
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (state / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return urls(plan)
        told: dict[str, Any] = {"config": plan.config.model_dump(mode="json"), "host": plan.host, "run_id": plan.run_id}
        if lives_with is not None:
            told["lives_with"] = lives_with
        secret_file.write(state / _PLAN, json.dumps(told))
        # What the one before said of itself is not so of this one.
        (state / _RECORD).unlink(missing_ok=True)
        # Forked off: whoever ends this process and its children, as Ray does, has none of it.
        command = ["setsid", "--fork", sys.executable, "-m", _MODULE, str(state), str(lock.fileno())]
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[lock.fileno()]
        )
    return {}


def urls(plan: HostPlan) -> dict[str, str]:
    """Where the engines answer that the owner process runs, by device; none if it does not run."""
    record = _record(plan.state)
    return {} if record is None else dict(record["urls"])


def failure(plan: HostPlan) -> str | None:
    """Why engines do not serve, if they do not."""
    record = _record(plan.state)
    return None if record is None or not record["failures"] else "; ".join(record["failures"].values())


def fork_server(plan: HostPlan) -> Path | None:
    """Where rollout engines on CPU cores can be forked from as well."""
    record = _record(plan.state)
    return None if record is None or record["fork_server"] is None else Path(record["fork_server"])


def stop(plan: HostPlan) -> None:
    """End the owner process and its engines; returns when they are gone. Raises DeploymentError if they stay."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while _runs(plan.state):
        # One that is being started has not said its number yet.
        record = _record(plan.state)
        process = None if record is None else DetachedProcess.open(record["pid"])
        # The handle first: what has this number while the lock is taken is the owner.
        if process is not None and _runs(plan.state):
            process.send_signal(signal.SIGTERM)
        if time.monotonic() > deadline_s:
            raise DeploymentError(
                f"the process of the serving engines of host {plan.host!r} did not end within {_STOP_TIMEOUT_S:.0f} s: "
                f"end what has {plan.state / _LOCK} open (`fuser` names it)"
            )
        time.sleep(_LOOK_S / 5)


def _runs(state: Path) -> bool:
    """Whether an owner process runs, or is being started."""
    try:
        with (state / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _record(state: Path) -> dict[str, Any] | None:
    """What the owner process that runs says of itself; None if none does, or it has said nothing yet."""
    try:
        record: dict[str, Any] = json.loads((state / _RECORD).read_text())
    except (OSError, ValueError):
        return None
    return record if _runs(state) else None


class _Owner:
    """The process. Each device has a thread, which its engine lives and dies with."""

    def __init__(
        self, plan: HostPlan, lives_with: int | None, make_engine: Callable[[EngineSpec], EngineProcess]
    ) -> None:
        self._plan = plan
        self._lives_with = lives_with
        self._make_engine = make_engine
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._urls: dict[str, str] = {}
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
        if any(device.gpu is None for device in own.device):
            socket = self._plan.memory / "engines"
            socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._fork_server = ForkServer.start(socket, self._plan.logs / "forkserver.log")
            except OSError as error:
                self._say(f"engines start without a fork server, which takes longer: {error}")
        devices = [device.id for device in own.device if device.pool == "serving" and device.serving_url is None]
        threads = [threading.Thread(target=self._serve, args=[device_id]) for device_id in devices]
        if self._lives_with is not None:
            threading.Thread(target=self._live_with, args=[self._lives_with], daemon=True).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                with self._lock:
                    if self._unwritten is not None:
                        self._write()
        if self._fork_server is not None:
            self._fork_server.stop()

    def _serve(self, device_id: str) -> None:
        """Keep one device's engine until it is time to stop, whatever comes in between."""
        while not self._stopping.is_set():
            try:
                # Made once: each that is made claims a port for as long as this process lives.
                if device_id not in self._devices:
                    self._devices[device_id] = self._device(device_id)
                self._live(self._devices[device_id])
            except KeyboardInterrupt:
                pass
            except Exception as error:
                text = str(error) if isinstance(error, UserError | OSError) else f"{type(error).__name__}: {error}"
                self._say(f"{device_id}: {text}")
                self._tell(device_id, None, f"{device_id}: {text}")
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
            self._devices[device_id] = _at(device, engines.url(device_id))
            engines.stop()

    def _device(self, device_id: str) -> ServingDevice:
        own = self._plan.own
        device = self._fleet().serving(next(device for device in own.device if device.id == device_id))
        assert device is not None
        assert device.spec is not None
        # As an owner's server starts: attached to no page, and to be attached by whoever has one.
        return replace(device, spec=replace(device.spec, plugin=PluginSettings("serving", None)))

    def _fleet(self) -> FleetPlan:
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
            free_bytes=preflight.check_gpus(memory),
        )

    def _live_with(self, pid: int) -> None:
        """Who lends is told first, and then has time to end in order."""
        if (process := DetachedProcess.open(pid)) is not None:
            process.wait()
        self._stopping.wait(_ALONE_S)
        self._stopping.set()

    def _tend(self) -> None:
        if self._stopping.is_set():
            raise KeyboardInterrupt

    def _tell(self, device_id: str, url: str | None, why_not: str | None) -> None:
        with self._lock:
            if url is not None:
                self._urls[device_id] = url
            self._failures.pop(device_id, None)
            if why_not is not None:
                self._failures[device_id] = why_not
            self._write()

    def _write(self) -> None:
        """Put on record how it is. Where that fails, on a full disk, engines are looked after all the same."""
        told = {
            "pid": os.getpid(),
            "urls": {name: url for name, url in self._urls.items() if name not in self._failures},
            "failures": self._failures,
            "fork_server": None if self._fork_server is None else str(self._fork_server.path),
        }
        record = self._plan.state / _RECORD
        partial = record.with_name(f".{_RECORD}.partial")
        try:
            partial.write_text(json.dumps(told))
            partial.replace(record)
            self._unwritten = None
        except OSError as error:
            if self._unwritten != str(error):
                self._say(f"{record} cannot be written, which is tried again: {error}")
            self._unwritten = str(error)


def _at(device: ServingDevice, url: str) -> ServingDevice:
    """The same where its engine was last."""
    assert device.spec is not None
    spec = replace(device.spec, port=int(url.rsplit(":", 1)[1]))
    return replace(device, url=url, spec=spec)


def main(make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess) -> None:
    state, lock = Path(sys.argv[1]), int(sys.argv[2])
    # It stays open for as long as this process lives, and nothing that is started here has it.
    os.set_inheritable(lock, False)
    told = json.loads((state / _PLAN).read_text())
    config = FleetConfig.model_validate_json(json.dumps(told["config"]))
    leftovers.remove_unused()
    plan = HostPlan(config=config, host=told["host"], run_id=told["run_id"], controller_url="")
    _Owner(plan, told.get("lives_with"), make_engine).run()


if __name__ == "__main__":
    main()
