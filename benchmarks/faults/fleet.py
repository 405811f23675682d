"""A fleet on two hosts of this machine, each with a core that serves and is lent, and a trainer as its client.

Each host is a set of namespaces (`tests/runtime/hosts.py`). What a service manager starts and restarts there,
this module does: Ray's nodes, `rose up --stay`, and `rose train --resume`. Serving is ROSE's own, of an owner process,
with users on its host.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.plan import HostName, Victim
from benchmarks.faults.processes import Service, name_of, number_inside, processes_of, title_of
from benchmarks.faults.setting import (
    DEVICES,
    DISK,
    FILE,
    GATEWAY_PORT,
    HOSTS,
    NAME,
    SERVING_URL,
    TOKEN,
    TRAINER_DEVICE,
    Setting,
    make_model,
    make_models,
)
from benchmarks.faults.watch import PageWatch
from rose.clock import monotonic_ns
from rose.config import FleetConfig
from rose.errors import UserError
from rose.runtime.coserving.page import Field, Party
from rose.runtime.service import local_ray
from rose.runtime.service.places import HostPlan
from tests.runtime.hosts import Host, Network, clock_library, missing

_DISK_BYTES = 256 << 20
_RAY_PORT = 6379
_STEPS = 1_000_000
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 600.0, 240.0
_LOOK_S = 0.2
_AHEAD_S = 50_000
#: Titles of the processes of each part.
_TITLES = {
    Victim.CONTROLLER: "ray::ControllerActor",
    Victim.AGENT: "ray::HostActor",
    Victim.KEEPER: "ray::Keeper",
    Victim.WORKER: "rose.runtime.rollout.worker",
    Victim.TRAINER: "rose.cli train",
}
_STAND_INS = "tests.runtime.service.players"
#: `rose up --stay` with stand-ins for engines.
_UP = """
import sys, time
from pathlib import Path
from rose import config
from rose.runtime.service.up import up
from tests.runtime.service.players import Player
say = lambda text: print(text, flush=True)
fleet = up(config.load(Path(sys.argv[1])), sys.argv[2], say, {"make_engine": Player})
print("fleet run", fleet.wait_ready(say).run_id, flush=True)
while fleet.goes_on():
    time.sleep(1.0)
"""
_FILL = """
import os, sys, time
space = os.statvfs(sys.argv[1])
file = os.open(sys.argv[1] + "/ballast", os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(file, 0, space.f_bavail * space.f_frsize)
"""


class FleetError(UserError):
    """The fleet did not start, or is lost."""


@dataclass(slots=True)
class Heard:
    """What the programs on the hosts say, as `benchmarks.faults.users` prints it, with the host."""

    served: list[dict[str, Any]] = field(default_factory=list)
    health: list[dict[str, Any]] = field(default_factory=list)
    controller: list[dict[str, Any]] = field(default_factory=list)


class Fleet:
    """Use it as a context: all of it is ended with it. `folder` holds the hosts' disks. Raises FleetError."""

    def __init__(self, folder: Path, seed: int, setting: Setting) -> None:
        if (cores := len(os.sched_getaffinity(0))) < len(HOSTS):
            raise FleetError(f"the trials need two CPU cores and this process has {cores}")
        if (reason := missing()) is not None:
            raise FleetError(reason)
        self.network = Network(folder)
        self.setting, self._seed = setting, seed
        self.heard = Heard()
        self.steps: list[dict[str, Any]] = []
        self.watches: dict[HostName, PageWatch] = {}
        self.hosts: dict[HostName, Host] = {}
        self.services: list[Service] = []
        self._stopped = False

    def __enter__(self) -> Fleet:
        self.network.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for watch in self.watches.values():
            watch.stop()
        for service in self.services:
            service.stop(signal.SIGKILL, 5.0)
        self.network.__exit__()

    # ------------------------------------------------------------------ start and end

    def _start(self) -> None:
        for name in HOSTS:
            host = self.network.add(
                clock_ahead_s=0 if name == "one" else _AHEAD_S,
                clock_is_set=name == "other" and clock_library() is not None,
            )
            self.hosts[name] = host
        if not self.setting.made:
            make_models(self._config())
        one = self.hosts["one"]
        one.call("sh", "-c", f"mkdir {DISK} && mount -n -t tmpfs -o size={_DISK_BYTES} tmpfs {DISK}")
        for host in self.hosts.values():
            host.call("mkdir", "-p", DISK)
            (host.disk / "fleet.json").write_text(self._config().model_dump_json())
            if self.setting.made:
                make_model(host.disk / "model")
        for name in HOSTS:
            if self.setting.made:
                self._service(name, "serving", "-m", _STAND_INS, "serving")
            self._serve(name)
        own = ["-m", "rose.cli", "up", "-c", FILE, "--stay", "--address"]
        made = ["-c", _UP, FILE]
        self._service("one", "up", "-u", *(made if self.setting.made else own), self._ray_address)
        self._until("the fleet is ready", lambda: "fleet run" in (one.disk / "up.log").read_text())
        # It has a core that serves on the other host: what is played is played on what is lent.
        self.rose("drain", TRAINER_DEVICE, "-c", FILE, "--reason", "its core is another host's")
        self._service(
            "one",
            "train",
            "-m",
            "rose.cli",
            "train",
            "--url",
            self.url,
            "--config",
            FILE,
            "--json",
            "--checkpoint",
            "/srv/checkpoint",
            "--resume",
            "--steps",
            str(_STEPS),
            "--device",
            TRAINER_DEVICE,
            ROSE_TOKEN=TOKEN,
            heard=self._step,
        )
        for name in HOSTS:
            self._attend(name)
            watch = self.watches[name] = PageWatch(partial(self._page, name), partial(self._process, name))
            watch.start()

    def _serve(self, name: HostName) -> None:
        """What a host's service manager starts: its Ray node."""
        host = self.hosts[name]
        where = (
            ["--head", f"--port={_RAY_PORT}", "--include-dashboard=false"]
            if name == "one"
            else [f"--address={self._ray_address}"]
        )
        service = Service(
            host,
            "ray",
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--block",
            *where,
            f"--node-ip-address={host.address}",
            "--disable-usage-stats",
            "--num-cpus=2",
            f"--object-store-memory={128 << 20}",
        )
        service.environment = dict(local_ray.ENVIRONMENT)
        self.services.append(service.start())

    def _service(
        self, name: HostName, what: str, *arguments: str, heard: Callable[[str], None] | None = None, **environment: str
    ) -> None:
        service = Service(self.hosts[name], what, sys.executable, *arguments, heard=heard)
        service.environment = environment
        self.services.append(service.start())

    def _attend(self, name: HostName) -> None:
        """Have users on a host whose serving engine is to be up; their program goes on beside it."""
        self._until(f"serving on {name} answers", lambda: self.serving_url(name) is not None)
        controller = (self.url, TOKEN) if name == "one" else ()
        ahead_ns = self.hosts[name].clock_ahead_s * 1_000_000_000
        arguments = (
            str(self.serving_url(name)),
            str(self._seed),
            str(ahead_ns),
            str(0.0 if self.setting.made else self.setting.patience),
            *controller,
        )
        service = Service(
            self.hosts[name],
            f"users-{monotonic_ns()}",
            sys.executable,
            "-m",
            "benchmarks.faults.users",
            *arguments,
            heard=lambda line: self._hear(name, line),
        )
        self.services.append(service.start())

    def lose(self, name: HostName) -> None:
        """Cut a host's power. Its users' program is of no more use: its serving engine is another when it is back."""
        host = self.hosts[name]
        for service in [one for one in self.services if one.host is host and one.name.startswith("users")]:
            self.services.remove(service)
            threading.Thread(target=service.stop, args=[signal.SIGKILL, 5.0], daemon=True).start()
        host.kill()

    def boot(self, name: HostName, ahead_s: int) -> None:
        """Start a lost host again, with another clock; its users come when it serves."""
        host = self.hosts[name]
        host.clock_ahead_s = ahead_s
        host.boot()
        threading.Thread(target=self._attend, args=[name], daemon=True).start()

    def stop(self) -> None:
        """End the trainer and the fleet as `rose down` does. Raises FleetError if it does not end."""
        self._stopped = True
        for service in [one for one in self.services if one.name == "train" or one.name.startswith("users")]:
            service.stop()
        for service in [one for one in self.services if one.name == "up"]:
            service.stop(signal.SIGKILL)
        try:
            self.rose("down", "-c", FILE, "--address", self._ray_address, timeout_s=_STOP_TIMEOUT_S)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise FleetError(f"the fleet did not go down: {error}") from None

    # ------------------------------------------------------------------ looking

    @property
    def url(self) -> str:
        return f"http://{self.hosts['one'].address}:{GATEWAY_PORT}"

    @property
    def ledger(self) -> str:
        """Where the ledger is, on the first host."""
        return f"{DISK}/ledger"

    def rose(self, *arguments: str, timeout_s: float = 120.0) -> str:
        return self.hosts["one"].call(sys.executable, "-m", "rose.cli", *arguments, timeout_s=timeout_s)

    def inside(self, name: HostName, path: str) -> Path:
        """A path of a host, as it is seen from outside."""
        return Path(f"/proc/{self.hosts[name].first_pid}/root{path}")

    def serving_url(self, name: HostName) -> str | None:
        if self.setting.made:
            return SERVING_URL if self.hosts[name].up else None
        record = self._owner(name)
        return None if record is None else record["urls"].get(DEVICES[name])

    def serving_pid(self, name: HostName) -> int | None:
        """The host's serving scheduler, by its number there."""
        page = self.watches[name].page
        return page.get(Party.SERVING, Field.PID) if page is not None and page.alive(Party.SERVING) else None

    def _owner(self, name: HostName) -> dict[str, Any] | None:
        """The owner process of a host's serving, by its own record; None if there is none since the host booted."""
        with suppress(OSError, ValueError):
            path = self.inside(name, f"{DISK}/state/{NAME}/{name}/serving.json")
            if path.stat().st_mtime >= (self.hosts[name].disk / ".booted").stat().st_mtime:
                record: dict[str, Any] = json.loads(path.read_text())
                return record
        return None

    def _process(self, name: HostName, number: int) -> psutil.Process | None:
        """The process that has this number on that host."""
        with suppress(psutil.Error):
            return _numbered(processes_of(self.hosts[name]), number)
        return None

    def find(self, victim: Victim, name: HostName) -> list[psutil.Process]:
        """The processes that are this part now; none while it is being started again."""
        with suppress(psutil.NoSuchProcess):
            family = processes_of(self.hosts[name])
            if victim in (Victim.HEAD, Victim.NODE):
                names = {"gcs_server", "raylet"} if victim is Victim.HEAD else {"raylet"}
                return [process for process in family if name_of(process) in names]
            if victim in (Victim.SCHEDULER, Victim.SERVER):
                page = self.watches[name].page
                if page is None or not page.alive(Party.ROLLOUT):
                    return []
                scheduler = _numbered(family, page.get(Party.ROLLOUT, Field.PID))
                schedulers = [] if scheduler is None else [scheduler]
                if victim is Victim.SCHEDULER:
                    return schedulers
                # A stand-in is one process, which nobody but the host's first one is the parent of.
                parents = [one.parent() or one for one in schedulers]
                return schedulers if self.setting.made else parents
            title = _TITLES[victim]
            return [process for process in family if title in title_of(process) and "nsenter" not in title_of(process)][
                :1
            ]
        return []

    def check(self) -> None:
        """Raises FleetError if the first host is lost."""
        if not self.hosts["one"].up:
            raise FleetError("the first host ended by itself")

    # ------------------------------------------------------------------ inside

    @property
    def _ray_address(self) -> str:
        return f"{self.hosts['one'].address}:{_RAY_PORT}"

    def _config(self) -> FleetConfig:
        return self.setting.config({name: host.address for name, host in self.hosts.items()})

    def _page(self, name: HostName) -> tuple[Path, int]:
        plan = HostPlan(config=self._config(), host=name, run_id="", controller_url="")
        ahead_ns = self.hosts[name].clock_ahead_s * 1_000_000_000
        # The link is the host's, and leads to a path of the host.
        memory = self.inside(name, str(plan.state / "memory")).readlink()
        return self.inside(name, str(memory / DEVICES[name] / "page")), ahead_ns

    def _hear(self, name: HostName, line: str) -> None:
        with suppress(ValueError, KeyError, AttributeError):
            said = json.loads(line)
            getattr(self.heard, said.pop("kind")).append({"host": name, **said})

    def _step(self, line: str) -> None:
        with suppress(ValueError):
            self.steps.append(json.loads(line))

    def _until(self, what: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(OSError):
                if there():
                    return
            if self._stopped:
                return
            self.check()
            time.sleep(_LOOK_S)
        raise FleetError(f"{what}: not within {_START_TIMEOUT_S:.0f} s; see the logs in {self.hosts['one'].disk}")


def fill(fleet: Fleet) -> None:
    """Leave no byte on the file system of the first host's ledger."""
    fleet.hosts["one"].python(_FILL, DISK)


def empty(fleet: Fleet) -> None:
    """Give the room back that `fill` took."""
    fleet.hosts["one"].call("rm", "-f", f"{DISK}/ballast")


def _numbered(family: Sequence[psutil.Process], number: int) -> psutil.Process | None:
    """The one of a host's processes that has this number there."""
    return next((process for process in family if number_inside(process) == number), None)
