"""A fleet on two hosts of this machine (`tests/runtime/hosts.py`), each with a core that serves and is lent. This
module starts and restarts Ray's nodes, `rose up --stay`, trainers and users, as a service manager does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults import setting
from benchmarks.faults.plan import HostName, Victim
from benchmarks.faults.processes import FleetError, Program, name_of, numbered, processes_of, title_of, until
from benchmarks.faults.setting import DEVICES, DISK, FILE, HOSTS, NAME, RAY_ADDRESS, TOKEN, URL, Setting, Team
from benchmarks.faults.watch import PageWatch
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import Field, Party
from rose.runtime.host_plan import HostPlan
from rose.runtime.models import models
from rose.runtime.service import local_ray
from rose.terminal import echo
from tests.runtime.hosts import Host, Network, clock_library, missing

_DISK_BYTES = 256 << 20
_START_TIMEOUT_S, _STOP_TIMEOUT_S, _CALL_TIMEOUT_S = 600.0, 240.0, 600.0
_AHEAD_S = 50_000  #: Lead of the second host's monotonic clock.
#: Titles of the processes of each part.
_TITLES = {Victim.CONTROLLER: "ray::ControllerActor", Victim.AGENT: "ray::HostActor", Victim.TRAINER: "rose.cli train"}
_PYTHON, _ROSE = sys.executable, ("-m", "rose.cli")
_STAND_INS = ("-m", "tests.runtime.service.players")
#: `rose up --stay` with stand-ins for engines.
_UP = """
import sys, time
from pathlib import Path
from rose import config
from rose.runtime.service.up import up
from tests.runtime.service.players import Player
say = lambda text: print(text, flush=True)
fleet = up(config.load(Path(sys.argv[1])), sys.argv[2], say, {"make_engine": Player})
fleet.wait_ready(say)
print("fleet run", fleet.remembered.run_id, flush=True)
while fleet.is_running():
    time.sleep(1.0)
"""
_FILL = """
import os, sys
space = os.statvfs(sys.argv[1])
file = os.open(sys.argv[1] + "/ballast", os.O_CREAT | os.O_WRONLY)
os.posix_fallocate(file, 0, space.f_bavail * space.f_frsize)
"""


@dataclass(slots=True)
class Heard:
    served: list[dict[str, Any]] = field(default_factory=list)
    health: list[dict[str, Any]] = field(default_factory=list)
    controller: list[dict[str, Any]] = field(default_factory=list)


class Fleet:
    """A fleet inside its context. `folder` has the hosts' disks, `ray` more settings of Ray. Raises FleetError."""

    def __init__(self, folder: Path, engines: Setting, seed: int = 1, ray: Mapping[str, str] | None = None) -> None:
        if (cores := len(os.sched_getaffinity(0))) < len(HOSTS):
            raise FleetError(f"the trials need two CPU cores and this process has {cores}")
        if (reason := missing()) is not None:
            raise FleetError(reason)
        self.network = Network(folder)
        self.setting, self._seed = engines, seed
        self._ray = {**local_ray.ENVIRONMENT, **(ray or {})}
        self.heard = Heard()
        self.watches: dict[HostName, PageWatch] = {}
        self.hosts: dict[HostName, Host] = {}
        self.programs: list[Program] = []
        self._config = engines.config()
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
        for program in self.programs:
            program.stop(signal.SIGKILL, 5.0)
        self.network.__exit__()

    def _start(self) -> None:
        for name in HOSTS:
            ahead_s = 0 if name == "one" else _AHEAD_S
            can_set = name == "other" and clock_library() is not None
            self.hosts[name] = self.network.add(clock_ahead_s=ahead_s, clock_is_set=can_set)
        if not self.setting.made:
            for model in (self._config.serving.model, self._config.rollout.model):
                models.resolve(model, self._config.cache, lambda text: echo(text, err=True))
        one = self.hosts["one"]
        one.call("sh", "-c", f"mkdir {DISK} && mount -n -t tmpfs -o size={_DISK_BYTES} tmpfs {DISK}")
        for name, host in self.hosts.items():
            host.call("mkdir", "-p", DISK)
            (host.disk / "fleet.json").write_text(self._config.model_dump_json())
            if self.setting.made:
                setting.make_model(host.disk / "model")
                self.start(name, "serving", *_STAND_INS, "serving", again=True)
            self._start_ray(name)
        way = ("-c", _UP, FILE) if self.setting.made else (*_ROSE, "up", "-c", FILE, "--stay", "--address")
        self.start("one", "up", "-u", *way, RAY_ADDRESS, again=True)
        self._until("the fleet is ready", lambda: "fleet run" in (one.disk / "up.log").read_text())
        for name in HOSTS:
            self._attend(name)
            watch = self.watches[name] = PageWatch(partial(self._page, name), partial(self._process, name))
            watch.start()

    def _start_ray(self, name: HostName) -> None:
        head = ("--head", f"--port={setting.RAY_PORT}", "--include-dashboard=false")
        options = ["--block", *(head if name == "one" else (f"--address={RAY_ADDRESS}",)), "--disable-usage-stats"]
        options += [f"--node-ip-address={self.hosts[name].address}", "--num-cpus=2"]
        options += [f"--object-store-memory={128 << 20}"]
        ray = str(Path(_PYTHON).with_name("ray"))
        self.start(name, "ray", "start", *options, command=ray, again=True, **self._ray)

    def start(self, name: HostName, what: str, *arguments: str, command: str = _PYTHON, **options: Any) -> Program:
        program = Program(self.hosts[name], what, command, *arguments, **options)
        self.programs.append(program)
        return program

    def _attend(self, name: HostName) -> None:
        self._until(f"serving on {name} answers", lambda: self.serving_url(name) is not None)
        replayed = int(not self.setting.made)  # A stand-in gets no requests.
        arguments = (self.serving_url(name), self._seed, self._ahead_ns(name), replayed)
        controller = (URL, TOKEN) if name == "one" else ()

        def hear(line: dict[str, Any]) -> None:
            with suppress(KeyError, AttributeError):
                getattr(self.heard, line.pop("kind")).append({"host": name, **line})

        program = ("-m", "benchmarks.faults.users", *map(str, arguments), *controller)
        self.start(name, f"users-{monotonic_ns()}", *program, again=True, heard=hear)

    def train(self, team: Team, steps: int, *, resume: bool = False, again: bool = False) -> Program:
        options = ["--url", URL, "--config", FILE, "--json", "--team", team.name, "--name", team.name]
        options += ["--checkpoint", f"/srv/checkpoint-{team.name}", "--steps", str(steps)]
        options += [*(["--resume"] if resume else []), *(["--device", team.device] if team.device else [])]
        return self.start(team.host, f"train-{team.name}", *_ROSE, "train", *options, again=again, ROSE_TOKEN=TOKEN)

    def lose(self, name: HostName) -> None:
        host = self.hosts[name]
        for program in [one for one in self._users() if one.host is host]:
            self.programs.remove(program)
            threading.Thread(target=program.stop, args=[signal.SIGKILL, 5.0], daemon=True).start()
        host.kill()

    def boot(self, name: HostName, ahead_s: int) -> None:
        """Start a lost host with another clock, and its users once it serves."""
        host = self.hosts[name]
        host.clock_ahead_s = ahead_s
        host.boot()
        threading.Thread(target=self._attend, args=[name], daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        for program in [*self._users(), *(one for one in self.programs if one.name.startswith("train"))]:
            program.stop()
        for program in [one for one in self.programs if one.name == "up"]:
            program.stop(signal.SIGKILL)
        self.call("one", *_ROSE, "down", "-c", FILE, "--address", RAY_ADDRESS, timeout_s=_STOP_TIMEOUT_S)

    def _users(self) -> list[Program]:
        return [program for program in self.programs if program.name.startswith("users")]

    def call(self, name: HostName, *arguments: str, timeout_s: float = _CALL_TIMEOUT_S) -> str:
        try:
            return self.hosts[name].call(_PYTHON, *arguments, timeout_s=timeout_s)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise FleetError(str(error)) from None

    def rose(self, *arguments: str) -> str:
        return self.call("one", *_ROSE, *arguments)

    def inside(self, name: HostName, path: str) -> Path:
        return Path(f"/proc/{self.hosts[name].first_pid}/root{path}")

    def serving_url(self, name: HostName) -> str | None:
        if self.setting.made:
            return setting.SERVING_URL if self.hosts[name].up else None
        with suppress(OSError, ValueError):
            record = self.inside(name, f"{DISK}/state/{NAME}/{name}/serving.json")
            # A record from before the host's boot is of an engine that is gone.
            if record.stat().st_mtime >= (self.hosts[name].disk / ".booted").stat().st_mtime:
                url: str | None = json.loads(record.read_text())["urls"].get(DEVICES[name])
                return url
        return None

    def serving_pid(self, name: HostName) -> int | None:
        page = self.watches[name].page
        return page.get(Party.SERVING, Field.PID) if page is not None and page.alive(Party.SERVING) else None

    def _process(self, name: HostName, number: int) -> psutil.Process | None:
        with suppress(psutil.Error):
            return numbered(self.hosts[name], number)
        return None

    def find(self, victim: Victim, name: HostName) -> Sequence[psutil.Process]:
        """Return the part's processes; none during its restart."""
        host = self.hosts[name]
        with suppress(psutil.NoSuchProcess):
            if victim in (Victim.HEAD, Victim.NODE):
                names = {"gcs_server", "raylet"} if victim is Victim.HEAD else {"raylet"}
                return [process for process in processes_of(host) if name_of(process) in names]
            if victim in (Victim.SCHEDULER, Victim.SERVER):
                page = self.watches[name].page
                if page is None or not page.alive(Party.ROLLOUT):
                    return []
                scheduler = numbered(host, page.get(Party.ROLLOUT, Field.PID))
                if scheduler is None or victim is Victim.SCHEDULER or self.setting.made:
                    # A stand-in is one process, a child of the host's first.
                    return [] if scheduler is None else [scheduler]
                return [scheduler.parent() or scheduler]
            title = _TITLES[victim]
            return [
                process
                for process in processes_of(host)
                if title in title_of(process) and "nsenter" not in title_of(process)
            ][:1]
        return []

    def check(self) -> None:
        if not self.hosts["one"].up:
            raise FleetError("the first host ended by itself")

    def _ahead_ns(self, name: HostName) -> int:
        return self.hosts[name].clock_ahead_s * 1_000_000_000

    def _page(self, name: HostName) -> tuple[Path, int]:
        plan = HostPlan(config=self._config, host=name, run_id="", controller_url="")
        memory = self.inside(name, str(plan.state / "memory")).readlink()  # The link leads to a path of the host.
        return self.inside(name, str(memory / DEVICES[name] / "page")), self._ahead_ns(name)

    def _until(self, what: str, met: Any) -> None:
        def met_or_over() -> bool:
            self.check()
            return self._stopped or met()

        until(f"{what} (logs: {self.hosts['one'].disk})", met_or_over, _START_TIMEOUT_S)

    def fill(self) -> None:
        """Leave no byte on the file system of the first host's ledger."""
        self.hosts["one"].python(_FILL, DISK)

    def empty(self) -> None:
        self.hosts["one"].call("rm", "-f", f"{DISK}/ballast")
