"""`python -m benchmarks.controller`: what a borrowed token costs in controller CPU, beside forwarding alone."""

import json
import shutil
import subprocess
import sys
import tempfile
import urllib.request
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
#: A turn is recorded at its end, after it waited and ran.
_ARRIVED = """
SELECT epoch_us(min(event_time)) - sum(queue_ns + duration_ns) // 1000 AS arrived_us
FROM turn
GROUP BY run_id, trajectory_id, turn
ORDER BY arrived_us
"""

RATE = 200.0  #: Turns a second for which the target holds.
RECORDED, EVEN = "as a live run sent them", "evenly spaced"
WAYS = ("bare proxy", "controller")


@dataclass(frozen=True, slots=True)
class Load:
    """Tokens of each turn, and how turns arrive."""

    prompt: int
    output: int
    arrivals: str

    def __str__(self) -> str:
        return f"{self.prompt} + {self.output} tokens, {self.arrivals}"


#: The target holds for the first two.
LOADS = (Load(256, 32, RECORDED), Load(256, 32, EVEN), Load(64, 8, RECORDED), Load(2048, 256, RECORDED))


def recorded(rate: float, seconds: float) -> list[float]:
    """Return the arrivals, seconds, of the sample ledger's first turns, stretched to the mean rate `rate`. Many turns
    of a group arrive together, since its engines answer them at the end of one step. Raises ValueError if the ledger
    has too few turns: it has 46,000."""
    count = int(rate * seconds)
    with tempfile.TemporaryDirectory(prefix="controller-benchmark-") as folder:
        copy = shutil.copytree(SAMPLE, Path(folder) / "ledger")  # Reading a ledger leaves a catalog in it.
        with catalog.connect(copy) as ledger:
            arrived = [us / 1e6 for (us,) in ledger.execute(_ARRIVED).fetchmany(count + 1)]
    if len(arrived) <= count:
        raise ValueError(f"--rate {rate:g} and --seconds {seconds:g} are {count} turns; {SAMPLE} has {len(arrived)}")
    stretch = count / rate / (arrived[count] - arrived[0])
    return [(at - arrived[0]) * stretch for at in arrived[:count]]


def even(rate: float, seconds: float) -> list[float]:
    return [number / rate for number in range(int(rate * seconds))]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="of load for each figure; 30, or 5 with --quick")
    parser.add_argument("--rate", type=float, default=RATE, help="turns a second")
    given = parser.parse_args()
    report = Report("controller", given.quick)
    with measured(report, given.json) as folder:
        for load in LOADS[:1] if given.quick else LOADS:
            measure(report, load, given.seconds or (5.0 if given.quick else 30.0), given.rate, folder)


def measure(report: Report, load: Load, seconds: float, rate: float, folder: Path) -> None:
    figures: dict[str, dict[str, Any]] = {}
    # Reading arrivals keeps a core busy, so it comes before the measuring.
    warm_up, arrivals = even(rate, min(2.0, seconds)), (recorded if load.arrivals == RECORDED else even)(rate, seconds)
    for way in WAYS:
        with phase(f"{way}, {load}"):
            figures[way] = _measure(way, load, warm_up, arrivals, folder / f"load-{LOADS.index(load)}")
        # A host that is too busy to send turns at the rate does not make them cheaper.
        figures[way]["cpu_share"] = figures[way]["cpu_s"] / max(1, figures[way]["turns"]) * rate
    report.detail[str(load)] = figures
    if load in LOADS[:2]:
        name = f"CPU of the controller at {rate:g} turns a second, {load}"
        report.claim(name, figures["controller"]["cpu_share"], "of a core", 0.10, "lower")
        report.claim(f"turns that failed, {load}", figures["controller"]["failed"], "turns", 0, "lower")
    shares = ", ".join(f"{way} {figures[way]['cpu_share']:.1%}" for way in WAYS)
    echo(f"of a core at {rate:g} turns a second, {load}: {shares}", err=True)


def _measure(way: str, load: Load, warm_up: list[float], arrivals: list[float], folder: Path) -> dict[str, Any]:
    engine_port, port = free_port(), free_port()
    with ExitStack() as stack:
        _start(stack, "engines", engine_port, load.output)
        if way == "controller":
            process = _start(stack, "controller", port, folder)
            run_id = _open_run(port)
            _start(stack, "agents", port, engine_port, run_id)
            path = f"/runs/{run_id}/generate"
        else:
            process = _start(stack, "bare", port, engine_port)
            path = "/generate"
        _send(port, path, warm_up, load)  # The warm-up pays for connections, deferred imports and a first segment.
        before = _cpu_s(process)
        figures = _send(port, path, arrivals, load)
        # Heartbeats, ticks and writes of all that time count, an interpreter's start does not.
        figures["cpu_s"] = _cpu_s(process) - before
    return figures


def _send(port: int, path: str, arrivals: list[float], load: Load) -> dict[str, Any]:
    words = _command("clients", port, path, load.prompt)
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
    """Start a part that ends with the stack, and return once it is ready."""
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
