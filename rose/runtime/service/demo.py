"""The demo: `rose up`, traffic, `rose train` and `rose down`, each in its usual process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rose.config import FleetConfig
from rose.errors import UserError
from rose.runtime import places, preflight
from rose.runtime.errors import DeploymentError
from rose.runtime.host_plan import HostPlan
from rose.runtime.service import local_ray, owner
from rose.runtime.service.memory import FleetMemory
from rose.runtime.service.process import log_to
from rose.runtime.service.up import Fleet, Say, down, up
from rose.terminal import progress

_LOOK_S = 0.2
_END_S = 30.0


def run(config: FleetConfig, say: Say, stopping: threading.Event, seconds_max: float | None = None) -> str:
    """Run the demo until its last step, a stop, or the time limit. Return the id of its fleet run.

    Raises PreflightError or DeploymentError."""
    preflight.check(config)
    if (notice := preflight.notice(config)) is not None:
        say(notice)
    if local_ray.find(folder := places.state_folder(config)) is not None:
        raise DeploymentError(f"fleet {config.name!r} runs already in {folder}: end it, or give another --ledger")
    deadline = None if seconds_max is None else time.monotonic() + seconds_max

    def tend() -> None:
        if stopping.is_set() or (deadline is not None and time.monotonic() > deadline):
            raise KeyboardInterrupt

    run_id, end = FleetMemory(config).begin().run_id, "done"
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rose-demo-"))) / "fleet.json"
        file.write_text(config.model_dump_json())
        _end_with(os.getpid(), config)
        owner.ensure(_plan(config, run_id))
        try:
            fleet = up(config, None, say)
            fleet.wait_ready(say, tend)
            device = next(device.id for device in config.device if device.pool == "rollout")
            options = ["--url", fleet.remembered.url, "--config", str(file), "--device", device]
            command = [sys.executable, "-m", "rose.cli", "train", *options]
            trainer = stack.enter_context(_child("the trainer", command, say))
            if config.traffic.trace != "none":
                command = [sys.executable, "-m", "rose.runtime.service.traffic", str(file)]
                stack.enter_context(_child("the traffic", command, lambda _: None))
            _follow(trainer, fleet, tend)
        except KeyboardInterrupt:
            end = "the demo stopped early" if stopping.is_set() else "the demo's time is up before its last step"
        finally:
            stack.close()
            _put_down(config, run_id, say)
    say(end)
    return run_id


def run_in_console(config: FleetConfig, seconds_max: float | None = None) -> str:
    """Run the demo on the terminal. After Ctrl-C or SIGTERM, the demo closes leases and accounts, and ends."""
    say, stopping = progress(err=False), threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stopping.is_set():
            say("the fleet is ending already: its leases and accounts are closing")
        else:
            say("stopping: the current step is lost, recorded events stay")
            stopping.set()

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, on_signal))
        return run(config, say, stopping, seconds_max)


def _plan(config: FleetConfig, run_id: str) -> HostPlan:
    return HostPlan(config=config, host=places.hosts(config)[0].name, run_id=run_id, controller_url="")


def _put_down(config: FleetConfig, run_id: str, say: Say) -> None:
    try:
        down(config, None, say)
    finally:
        local_ray.stop(places.state_folder(config))
        owner.stop(_plan(config, run_id))


def _end_with(pid: int, config: FleetConfig) -> None:
    command = ["setsid", "--fork", sys.executable, "-m", "rose.runtime.service.demo", str(pid)]
    # The new process lives longer, and must not keep this process's output open.
    text, null = config.model_dump_json(), subprocess.DEVNULL
    subprocess.run(command, check=True, input=text, text=True, stdout=null, stderr=null)


def main() -> None:
    pid, config = int(sys.argv[1]), FleetConfig.model_validate_json(sys.stdin.read())
    # A zombie counts as ended.
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    fleet_memory = FleetMemory(config)
    if (remembered := fleet_memory.read()) is None:
        return  # The process put the fleet down itself.
    say = log_to(fleet_memory.folder / "logs" / "demo.log")
    say("the demo has ended: ending its fleet")
    try:
        _put_down(config, remembered.run_id, say)
    except UserError as error:
        say(str(error))


def _follow(trainer: subprocess.Popen[str], fleet: Fleet, tend: Callable[[], None]) -> None:
    looked_s = time.monotonic()
    while True:
        if (code := trainer.poll()) is not None:
            if code:
                raise DeploymentError(f"the trainer ended with exit code {code}: see its messages above")
            return
        tend()
        if time.monotonic() - looked_s > 1.0:
            looked_s = time.monotonic()
            fleet.is_running()
        time.sleep(_LOOK_S)


def _read(process: subprocess.Popen[str], say: Say) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        say(line.rstrip())


@contextmanager
def _child(name: str, command: list[str], say: Say) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the block ends. Ctrl-C does not reach the command. `say` gets its messages."""
    null, pipe, errors = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    process = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=errors, text=True, start_new_session=True)
    reader = threading.Thread(target=_read, args=(process, say), name=name, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        reader.join(_END_S)  # It reads the last output.


if __name__ == "__main__":
    main()
