"""`python -m benchmarks.controller`: a borrowed token's cost in controller CPU."""

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks import parts
from benchmarks.parts import Client
from benchmarks.shared import arguments, measured
from rose.accept.report import ROOT, Report, phase
from rose.ledger.files import catalog
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
ENGINES = 4
CAPACITY = 64  #: Turns at once on one engine.
TURN_S = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    prompt: int
    output: int
    arrivals: str

    def __str__(self) -> str:
        return f"{self.prompt} + {self.output} tokens, {self.arrivals}"


#: The target holds for the first two.
LOADS = (Load(256, 32, RECORDED), Load(256, 32, EVEN), Load(64, 8, RECORDED), Load(2048, 256, RECORDED))


def recorded(seconds: float) -> list[float]:
    """Return the sample ledger's first arrivals, seconds, stretched to the mean rate."""
    count = int(RATE * seconds)
    with tempfile.TemporaryDirectory(prefix="controller-benchmark-") as folder:
        copy = shutil.copytree(SAMPLE, Path(folder) / "ledger")  # Reading a ledger leaves a catalog in it.
        with catalog.connect(copy) as ledger:
            arrived = [us / 1e6 for (us,) in ledger.execute(_ARRIVED).fetchmany(count + 1)]
    stretch = count / RATE / (arrived[count] - arrived[0])
    return [(at - arrived[0]) * stretch for at in arrived[:count]]


def even(seconds: float) -> list[float]:
    return [number / RATE for number in range(int(RATE * seconds))]


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("controller", options.quick)
    with measured(report, options.json) as folder:
        for load in LOADS[:1] if options.quick else LOADS:
            measure(report, load, 5.0 if options.quick else 30.0, folder)


def measure(report: Report, load: Load, seconds: float, folder: Path) -> None:
    # Reading arrivals keeps a core busy, so it comes before the measuring.
    warm_up, arrivals = even(min(2.0, seconds)), (recorded if load.arrivals == RECORDED else even)(seconds)
    with phase(str(load)):
        figures = _measure(load, warm_up, arrivals, folder / f"load-{LOADS.index(load)}")
    # A host that is too busy to send turns at the rate does not make them cheaper.
    figures["cpu_share"] = figures["cpu_s"] / max(1, figures["turns"]) * RATE
    report.detail[str(load)] = figures
    if load in LOADS[:2]:
        name = f"CPU of the controller at {RATE:g} turns a second, {load}"
        report.claim(name, figures["cpu_share"], "of a core", 0.10, "lower")
        report.claim(f"turns that failed, {load}", figures["failed"], "turns", 0, "lower")
    echo(f"of a core at {RATE:g} turns a second, {load}: {figures['cpu_share']:.1%}", err=True)


def _measure(load: Load, warm_up: list[float], arrivals: list[float], folder: Path) -> dict[str, float]:
    engine_port, port = free_port(), free_port()
    with ExitStack() as stack:
        engine = parts.start(stack, "engine", engine_port, load.output, TURN_S)
        process = parts.start(stack, "controller", port, folder)
        run_id = parts.open_run(port)
        parts.start(stack, "agents", port, run_id, CAPACITY, *[f"{engine_port}:{engine.pid}"] * ENGINES)
        path = f"/runs/{run_id}/generate"
        # The warm-up pays for connections, deferred imports and a first segment.
        uvloop.run(_send(port, path, warm_up, load.prompt))
        before = parts.cpu_s(process.pid)
        done = uvloop.run(_send(port, path, arrivals, load.prompt))
        # Heartbeats, ticks and writes of all that time count, an interpreter's start does not.
        return {"turns": done[200], "failed": done.total() - done[200], "cpu_s": parts.cpu_s(process.pid) - before}


async def _send(port: int, path: str, arrivals: list[float], prompt: int) -> Counter[int]:
    """Send a turn at each arrival, seconds, without waiting; count the statuses."""
    ids, idle, statuses = random.choices(range(30_000), k=prompt), list[Client](), Counter[int]()

    async def one(number: int) -> None:
        turn = {"trajectory_id": f"t{number % 500}", "group_id": "g", "step": 1, "key": f"k{number}-{time.time_ns()}"}
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 4096}, "rose": turn}
        client = idle.pop() if idle else await Client.connect(port)
        statuses[await client.ask(parts.http_post(path, body, ""))] += 1
        idle.append(client)

    began, running = time.perf_counter(), []
    for number, after_s in enumerate(arrivals):
        await asyncio.sleep(max(0.0, began + after_s - time.perf_counter()))
        running.append(asyncio.create_task(one(number)))
    await asyncio.gather(*running)
    return statuses


if __name__ == "__main__":
    main()
