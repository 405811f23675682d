"""The two hosts, and what is started on them: Ray, owners' serving engines, the fleet, its clients."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from benchmarks.faults.plan import HostName
from benchmarks.faults.runs import setting
from benchmarks.faults.runs.setting import Team
from benchmarks.faults.setting import Engines
from rose.errors import UserError
from rose.runtime.service import local_ray
from tests.runtime.hosts import Host, Network, missing

_PYTHON = sys.executable
_STAND_INS = ("-m", "tests.runtime.service.players")
_OBJECT_STORE_BYTES = 80 << 20
_START_TIMEOUT_S, _DOWN_TIMEOUT_S, _END_S = 600.0, 240.0, 60.0
_LOOK_S = 0.1
_RAY_TRIES = 3
#: No host is lost here: one that the machine's other work keeps from answering is not to be taken for one.
_PATIENT = {"RAY_health_check_timeout_ms": "30000", "RAY_health_check_failure_threshold": "20"}
_RAY = [f"{name}={value}" for name, value in (local_ray.ENVIRONMENT | _PATIENT).items()]
#: The second host's monotonic clock is ahead by so much.
_AHEAD_S = 50_000


class FleetError(UserError):
    """The fleet or a client of it did not do what it was to do."""


class Program:
    """A program on a host that goes on by itself; its output goes to a log, and each line of JSON to `heard`."""

    def __init__(self, host: Host, name: str, *arguments: str, **environment: str) -> None:
        self.host, self.name, self.heard = host, name, list[dict[str, Any]]()
        self._process = host.start(_PYTHON, *arguments, output=subprocess.PIPE, **environment)
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    @property
    def log(self) -> Path:
        return self.host.disk / f"{self.name}.log"

    @property
    def code(self) -> int | None:
        """How it ended; None while it goes on."""
        return self._process.poll()

    @property
    def family(self) -> list[psutil.Process]:
        """The program itself, and what it started."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def signal(self, number: signal.Signals) -> None:
        """To the program itself, not to what it started."""
        for process in self.family[:1]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises FleetError with the end of its log if it goes on for longer."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise FleetError(f"{self.name} did not end within {timeout_s:.0f} s:\n{self.tail}") from None
        self._thread.join(_END_S)
        return code

    @property
    def tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log.read_text().splitlines()[-20:])
        return ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open("a") as log:
            for line in self._process.stdout:
                if line.startswith("{"):
                    with suppress(ValueError):
                        self.heard.append(json.loads(line))
                        continue
                log.write(line)
                log.flush()


@dataclass(slots=True)
class Fleet:
    """Use it as a context: whatever runs on its hosts ends with it. `folder` holds the hosts' disks.

    Raises FleetError where a part does not start, or this machine cannot have hosts.
    """

    folder: Path
    engines: Engines
    network: Network = field(init=False)
    hosts: dict[HostName, Host] = field(init=False, default_factory=dict)
    _logs: list[IO[str]] = field(init=False, default_factory=list)

    def __enter__(self) -> Fleet:
        if (reason := missing()) is not None:
            raise FleetError(reason)
        self.network = Network(self.folder)
        self.network.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.network.__exit__()
        for log in self._logs:
            log.close()

    # ------------------------------------------------------------------ start and end

    def _start(self) -> None:
        text = setting.config(self.engines).model_dump_json()
        model = self.folder / "model"
        if self.engines == "stand-in":
            _make_model(model)
        for name in setting.HOSTS:
            host = self.hosts[name] = self.network.add(clock_ahead_s=0 if name == "one" else _AHEAD_S)
            (host.disk / "fleet.json").write_text(text)
            if self.engines == "stand-in":
                shutil.copytree(model, host.disk / "model")
                self._begin(host, "serving", *_STAND_INS, "serving")
            self._start_ray(host, first=name == "one")
        ways = {
            "sglang": ("-m", "rose.cli", "up", "-c", setting.FILE, "--address"),
            "stand-in": (*_STAND_INS, "up", setting.FILE),
        }
        self.call("one", *ways[self.engines], setting.RAY_ADDRESS, timeout_s=_START_TIMEOUT_S)

    def _start_ray(self, host: Host, *, first: bool) -> None:
        head = ("--head", "--port=6379", "--include-dashboard=false")
        where = head if first else (f"--address={setting.RAY_ADDRESS}",)
        usual = (f"--node-ip-address={host.address}", "--disable-usage-stats", "--num-cpus=2")
        store = f"--object-store-memory={_OBJECT_STORE_BYTES}"
        ray = str(Path(_PYTHON).with_name("ray"))
        for tries_left in reversed(range(_RAY_TRIES)):
            try:
                host.call("env", *_RAY, ray, "start", *where, *usual, store)
                return
            except AssertionError as error:
                # It gives itself thirty seconds, which are not enough on a machine that others use.
                if not tries_left:
                    raise FleetError(str(error)) from None
                host.call(ray, "stop", "--force")

    def _begin(self, host: Host, name: str, *arguments: str) -> None:
        log = (host.disk / f"{name}.log").open("a")
        self._logs.append(log)
        host.start(_PYTHON, *arguments, output=log)

    def traffic(self) -> list[Program]:
        """Users of each host's serving engine, where it is a real one."""
        if self.engines == "stand-in":
            return []
        program = ("-m", "rose.cli", "traffic", "-c", setting.FILE, "--host")
        return [Program(self.hosts[name], "traffic", *program, name) for name in setting.HOSTS]

    def down(self) -> None:
        """`rose down`. Raises FleetError if the fleet does not end."""
        where = ("-c", setting.FILE, "--address", setting.RAY_ADDRESS)
        self.call("one", "-m", "rose.cli", "down", *where, timeout_s=_DOWN_TIMEOUT_S)

    # ------------------------------------------------------------------ clients, and what is asked

    def train(self, team: Team, steps: int, *, resume: bool = False) -> Program:
        """`rose train` of a team, kept in its checkpoint."""
        options = ["--url", setting.URL, "--config", setting.FILE, "--json", "--team", team.name, "--name", team.name]
        options += ["--checkpoint", team.checkpoint, "--steps", str(steps), *(["--resume"] if resume else [])]
        options += [] if team.device is None else ["--device", team.device]
        arguments = ("-m", "rose.cli", "train", *options)
        return Program(self.hosts[team.host], f"train-{team.name}", *arguments, ROSE_TOKEN=setting.TOKEN)

    def look(self) -> Program:
        """What the controller says, second by second."""
        return Program(self.hosts["one"], "look", "-m", "benchmarks.faults.runs.look", setting.URL, setting.TOKEN)

    def call(self, host: HostName, *arguments: str, timeout_s: float = 180.0) -> str:
        """What a Python program on a host prints. Raises FleetError with its errors."""
        try:
            return self.hosts[host].call(_PYTHON, *arguments, timeout_s=timeout_s)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise FleetError(str(error)) from None

    def asked(self, host: HostName, *arguments: str) -> Any:
        """The JSON that a program on a host prints."""
        return json.loads(self.call(host, *arguments))


def until(what: str, there: Callable[[], bool], timeout_s: float, *programs: Program) -> None:
    """Wait for it. Raises FleetError if it does not come about, or one of `programs` ends before."""
    deadline = time.monotonic() + timeout_s
    while not there():
        for program in programs:
            if program.code is not None:
                raise FleetError(f"{program.name} ended with exit code {program.code}:\n{program.tail}")
        if time.monotonic() > deadline:
            raise FleetError(f"{what}: not within {timeout_s:.0f} s\n" + "\n".join(one.tail for one in programs))
        time.sleep(_LOOK_S)


def _make_model(folder: Path) -> None:
    """The least policy that a trainer takes: stand-ins compute nothing with it."""
    from rose.runtime.training.policy_model import Policy, PolicyShape

    shape = PolicyShape(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
    )
    folder.mkdir(parents=True)
    Policy(shape, seed=0).save(folder)
