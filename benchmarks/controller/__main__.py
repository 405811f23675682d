"""`python -m benchmarks.controller`: what a borrowed token costs in controller CPU, beside forwarding alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.shared import arguments, measured
from rose.accept.report import ROOT, Report, phase
from rose.ledger import catalog
from rose.runtime.engines.ports import free_port
from rose.terminal import echo

SAMPLE = ROOT / "sample_traces" / "ledger"
#: A turn was recorded when it was over, after it had waited and run.
_ARRIVED = """
SELECT epoch_us(min(event_time)) - sum(queue_ns + duration_ns) // 1000 AS arrived_us
FROM turn
GROUP BY run_id, trajectory_id, turn
ORDER BY arrived_us
"""

#: Seconds after the begin at which each turn is sent, for a rate of turns a second and so many seconds of it.
Arrivals = Callable[[float, float], list[float]]
#: Turns a second that the target is for.
RATE = 200.0
CPU_SHARE_MAX = 0.10


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens of a turn."""

    prompt: int
    output: int

    def __str__(self) -> str:
        return f"{self.prompt} + {self.output} tokens"


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent to the controller."""

    size: Size
    arrivals: str

    def __str__(self) -> str:
        return f"{self.size}, {self.arrivals}"


def recorded(rate: float, seconds: float) -> list[float]:
    """The first turns of the sample ledger, at its own pace but for a stretch that makes their mean rate `rate`.

    Of a group's turns many come at once: its engines answer them at the end of the same step. The ledger has 46,000
    turns; ValueError if more are wanted.
    """
    count = int(rate * seconds)
    with tempfile.TemporaryDirectory(prefix="controller-benchmark-") as folder:
        # Who reads a ledger leaves a catalog in it.
        copy = shutil.copytree(SAMPLE, Path(folder) / "ledger")
        with catalog.connect(copy) as ledger:
            arrived = [us / 1e6 for (us,) in ledger.execute(_ARRIVED).fetchmany(count + 1)]
    if len(arrived) <= count:
        raise ValueError(f"--rate {rate:g} and --seconds {seconds:g} are {count} turns; {SAMPLE} has {len(arrived)}")
    stretch = count / rate / (arrived[count] - arrived[0])
    return [(at - arrived[0]) * stretch for at in arrived[:count]]


def even(rate: float, seconds: float) -> list[float]:
    """One after the other: clients that have nothing to do with one another."""
    return [number / rate for number in range(int(rate * seconds))]


RECORDED, EVEN = "as a live run sent them", "evenly spaced"
ARRIVALS: dict[str, Arrivals] = {RECORDED: recorded, EVEN: even}
#: What the target is held against: `SIZE`, however its turns come.
SIZE = Size(256, 32)
LOADS = (Load(SIZE, RECORDED), Load(SIZE, EVEN), Load(Size(64, 8), RECORDED), Load(Size(2048, 256), RECORDED))


def main() -> None:
    """Measure each load; the exit code is 0 when the measuring itself worked."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="of load for each figure; 30, or 5 with --quick")
    parser.add_argument("--rate", type=float, default=RATE, help="turns a second")
    given = parser.parse_args()
    report = Report("controller", given.quick)
    with measured(report, given.json):
        measure(
            report, given.seconds or (5.0 if given.quick else 30.0), given.rate, LOADS[:1] if given.quick else LOADS
        )


#: What is measured, one after the other.
WAYS = ("bare proxy", "controller")


def measure(report: Report, seconds: float, rate: float, loads: tuple[Load, ...], ways: tuple[str, ...] = WAYS) -> None:
    """Each way with each load; what the claims rest on goes into the report's detail."""
    for load in loads:
        figures: dict[str, dict[str, Any]] = {}
        # Before anything is measured: who reads them keeps a core busy, and the controller goes on meanwhile.
        warm_up, arrivals = even(rate, min(2.0, seconds)), ARRIVALS[load.arrivals](rate, seconds)
        for way in ways:
            with phase(f"{way}, {load}"), tempfile.TemporaryDirectory(prefix="controller-benchmark-") as folder:
                figures[way] = _measure(way, load.size, warm_up, arrivals, Path(folder))
            # A host that is too busy to send turns at the rate does not make them cheaper.
            figures[way]["cpu_share"] = figures[way]["cpu_s"] / max(1, figures[way]["turns"]) * rate
        report.detail[str(load)] = figures
        measured = figures["controller"]
        measured["cpu_us_per_token"] = measured["cpu_s"] / max(1, measured["turns"] * load.size.output) * 1e6
        if load.size == SIZE:
            name = f"CPU of the controller at {rate:g} turns a second, {load}"
            report.claim(name, measured["cpu_share"], "of a core", CPU_SHARE_MAX, "lower")
            report.claim(f"turns that failed, {load}", measured["failed"], "turns", 0, "lower")
        shares = ", ".join(f"{way} {figures[way]['cpu_share']:.1%}" for way in ways)
        echo(f"of a core at {rate:g} turns a second, {load}: {shares}", err=True)


def _measure(way: str, size: Size, warm_up: list[float], arrivals: list[float], folder: Path) -> dict[str, Any]:
    engine_port, port = free_port(), free_port()
    with ExitStack() as stack:
        _start(stack, "engines", engine_port, size.output)
        if way == "controller":
            measured = _start(stack, "controller", port, engine_port, folder)
            run_id = _open_run(port)
            _start(stack, "agents", port, engine_port, run_id)
            path = f"/runs/{run_id}/generate"
        else:
            measured = _start(stack, "bare", port, engine_port)
            path = "/generate"
        # What is only paid once: connections, imports that are put off, a first segment.
        _send(port, path, warm_up, size)
        before = _cpu_s(measured)
        figures = _send(port, path, arrivals, size)
        # The heartbeats, ticks and writes of all that time are in it, and no interpreter's start.
        figures["cpu_s"] = _cpu_s(measured) - before
        figures["memory_bytes"] = psutil.Process(measured.pid).memory_info().rss
    return figures


def _send(port: int, path: str, arrivals: list[float], size: Size) -> dict[str, Any]:
    words = _command("clients", port, path, size.prompt)
    done = subprocess.run(words, cwd=ROOT, input=json.dumps(arrivals).encode(), stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _open_run(port: int) -> str:
    opened = _post(port, "/runs", {"name": "benchmark", "model": "stand-in", "expires_s": 600})
    _post(port, f"/runs/{opened['run_id']}/versions", {"fence": opened["fence"], "version": 0, "url": "http://store"})
    return str(opened["run_id"])


def _post(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return answer


def _start(stack: ExitStack, part: str, *given: object) -> subprocess.Popen[bytes]:
    """Start a part, which ends with the stack; returns once it is ready."""
    process = subprocess.Popen(_command(part, *given), cwd=ROOT, stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"{part} did not start")
    return process


def _command(part: str, *given: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.controller.parts", part, *map(str, given)]


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
