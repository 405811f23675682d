"""Hosts on this machine, sets of kernel namespaces: each with its own network, processes, memory, disk `/srv` and
clock, joined by a switch. Machine files are read-only. A killed host keeps only its disk. Needs `unshare` and root, or
user namespaces."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
#: What a host has of its own in place of the machine's, all of it in memory.
_PRIVATE = ("/dev/shm", "/tmp", "/var/tmp", "/run")
_SUBNET = "10.77.0"
#: On the disk of a host whose wall clock can be set: how many nanoseconds it is ahead of the machine's.
_CLOCK = "clock"
_AS_USER = os.geteuid() != 0
_USER = ["--user", "--map-root-user"] if _AS_USER else []
_START_TIMEOUT_S = 120.0

#: The first process of a host: it collects those that nobody waits for.
_INIT = r"""
set -e
mount -n --make-rprivate /
mount -n --bind "$DISK" /srv
for folder in $PRIVATE; do
  if [ -L "$folder" ]; then continue; fi
  mount -n -t tmpfs -o mode=1777 tmpfs /mnt
  for kept in $KEPT; do
    case "$kept" in "$folder"/*)
      mkdir -p "/mnt/${kept#"$folder"/}"
      mount -n --bind "$kept" "/mnt/${kept#"$folder"/}"
      mount -n -o remount,bind,ro "/mnt/${kept#"$folder"/}";;
    esac
  done
  mount -n --move /mnt "$folder"
done
mount -n -o remount,bind,ro /
mount -n -t proc proc /proc
hostname "$NAME"
ip link set lo up
mkdir -p /srv/home
cd "$ROOT"
echo ready > /srv/.booted
while :; do sleep 1000 || true; done
"""


@functools.cache
def missing() -> str | None:
    """Return why this machine cannot have hosts."""
    probe = ["unshare", *_USER, "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "sh", "-c"]
    script = (
        "mount --make-rprivate / && mount -t tmpfs x /mnt && mount -t proc p /proc && ip link add switch type bridge"
    )
    try:
        done = subprocess.run([*probe, script], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"namespaces cannot be made here: {error}"
    return None if done.returncode == 0 else f"namespaces cannot be made here: {done.stderr.strip()}"


@functools.cache
def clock_library() -> Path | None:
    """Return the library that gives processes a wall clock of their own; None without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    library, source = ROOT / "build" / "wall_clock.so", Path(__file__).with_name("wall_clock.c")
    if library.exists() and library.stat().st_mtime > source.stat().st_mtime:
        return library
    library.parent.mkdir(exist_ok=True)
    partial = library.with_suffix(f".{os.getpid()}.partial")
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", partial, source, "-ldl"], check=True)
    partial.replace(library)
    return library


@dataclass(eq=False)
class Host:
    """A host. `clock_ahead_s` moves its monotonic clock; with `clock_is_set`, `set_clock` moves its wall clock."""

    network: Network
    number: int
    disk: Path
    clock_ahead_s: int = 0
    clock_is_set: bool = False
    _unshare: subprocess.Popen[bytes] | None = None
    _init: int = 0

    @property
    def name(self) -> str:
        return f"host-{self.number}"

    @property
    def address(self) -> str:
        return f"{_SUBNET}.{self.number}"

    @property
    def up(self) -> bool:
        return self._unshare is not None and self._unshare.poll() is None

    @property
    def first_pid(self) -> int:
        return self._init

    def boot(self) -> None:
        assert not self.up
        booted = self.disk / ".booted"
        booted.unlink(missing_ok=True)
        clock = ["--time", f"--monotonic={self.clock_ahead_s}"] if self.clock_ahead_s else []
        environment = {
            **os.environ,
            "DISK": str(self.disk),
            "PRIVATE": " ".join(_PRIVATE),
            "KEPT": " ".join({str(ROOT), sys.prefix, sys.base_prefix}),
            "NAME": self.name,
            "ROOT": str(ROOT),
        }
        spaces = ["--net", "--mount", "--pid", "--uts", "--ipc", *clock]
        with (self.disk / "boot.log").open("w") as log:
            self._unshare = subprocess.Popen(
                [*self.network.inside(), "unshare", *spaces, "--fork", "--kill-child", "bash", "-c", _INIT],
                env=environment,
                stderr=log,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not booted.exists():
            going_on = self.up and time.monotonic() < deadline
            assert going_on, f"{self.name}: {(self.disk / 'boot.log').read_text()}"
            time.sleep(0.02)
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        self._init = int(children[0])
        port = f"port{self.number}"
        self.network.ip(f"link add {port} type veth peer name eth0 netns {self._init}")
        self.network.ip(f"link set {port} master switch up")
        self.call("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.call("ip", "link", "set", "eth0", "up")

    def command(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        own_clock = {"LD_PRELOAD": str(clock_library()), "WALL_CLOCK": f"/srv/{_CLOCK}"} if self.clock_is_set else {}
        given = {
            **own_clock,
            "HOME": "/srv/home",
            "TMPDIR": "/tmp",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **(environment or {}),
        }
        user = ["--user", "--preserve-credentials"] if _AS_USER else []
        clock = ["--time"] if self.clock_ahead_s else []
        spaces = ["--mount", "--net", "--pid", "--uts", "--ipc", *clock]
        unset = [f"--unset={name}" for name in os.environ if name.startswith(("ROSE_", "RAY_")) and name not in given]
        settings = [*unset, *(f"{name}={value}" for name, value in given.items())]
        enter = ["nsenter", "--target", str(self._init), *user, *spaces]
        return [*enter, "env", f"--chdir={ROOT}", *settings, *arguments]

    def call(self, *arguments: str, timeout_s: float = 400.0, **environment: str) -> str:
        done = subprocess.run(
            self.command(arguments, environment), capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            shown = shlex.join(arguments)[:300]
            raise AssertionError(f"{self.name}: {shown} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def python(self, program: str, *arguments: str, timeout_s: float = 400.0, **environment: str) -> str:
        return self.call(sys.executable, "-c", program, *arguments, timeout_s=timeout_s, **environment)

    def start(self, *arguments: str, output: IO[str] | int, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(arguments, environment),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self, *, pids: bool = False) -> list[str]:
        return self.call("ps", "-ww", "-eo", "pid,args" if pids else "args", "--no-headers").splitlines()

    def kill(self) -> None:
        assert self._unshare is not None
        with suppress(ProcessLookupError):
            os.kill(self._init, signal.SIGKILL)
        self._unshare.wait(_START_TIMEOUT_S)
        # The kernel takes a network away some time after its last process.
        with suppress(AssertionError):
            self.network.ip(f"link del port{self.number}")

    def set_clock(self, ahead_s: float) -> None:
        assert self.clock_is_set
        with (self.disk / _CLOCK).open("r+b" if (self.disk / _CLOCK).exists() else "wb") as file:
            file.write(struct.pack("=q", round(ahead_s * 1e9)))

    def unplug(self) -> None:
        self.network.ip(f"link set port{self.number} down")

    def plug_in(self) -> None:
        self.network.ip(f"link set port{self.number} up")


@dataclass(eq=False)
class Network:
    """A switch and its hosts, whose disks lie in `folder`. A context manager that ends all of them."""

    folder: Path
    hosts: list[Host] = field(default_factory=list)
    _switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        self._switch = subprocess.Popen(["unshare", *_USER, "--net", "sleep", "infinity"])
        deadline = time.monotonic() + _START_TIMEOUT_S
        own = Path("/proc/self/ns/net").stat().st_ino
        while Path(f"/proc/{self._switch.pid}/ns/net").stat().st_ino == own:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.ip("link add switch type bridge")
        self.ip("link set switch up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            if host.up:
                host.kill()
        assert self._switch is not None
        self._switch.kill()
        self._switch.wait()

    def add(self, *, clock_ahead_s: int = 0, clock_is_set: bool = False) -> Host:
        disk = self.folder / f"disk-{len(self.hosts) + 1}"
        disk.mkdir(parents=True)
        host = Host(self, len(self.hosts) + 1, disk, clock_ahead_s, clock_is_set)
        if clock_is_set:
            host.set_clock(0)
        self.hosts.append(host)
        host.boot()
        return host

    def inside(self) -> list[str]:
        assert self._switch is not None
        user = ["--user", "--preserve-credentials"] if _AS_USER else []
        return ["nsenter", "--target", str(self._switch.pid), *user, "--net"]

    def ip(self, command: str) -> None:
        done = subprocess.run(
            [*self.inside(), "ip", *command.split()], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 0, f"ip {command}: {done.stderr}"
