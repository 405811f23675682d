"""`python -m benchmarks.gateway --router PYTHON`: the controller as a router of turns, beside SGLang's router."""

import asyncio
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import parts
from benchmarks.gateway import sides
from benchmarks.gateway.sides import DIRECT, GENERATE, OWN, ROUTED, Side, made_up
from benchmarks.parts import Client
from benchmarks.shared import arguments, measure_parts, measured
from rose.accept.report import Report

PROMPT, OUTPUT = 1024, 64  #: Tokens of a turn.
CONCURRENT = (1, 64, 512)
CONTROLLED = {GENERATE: "/generate", OWN: "/runs/ID/generate"}
_KILL_TURN_S, _KILL_CLIENTS = 0.2, 16
#: Multi-turn traffic: trajectories of a group share its task, and all share a system prompt, as in GRPO.
_GROUPS, _GROUP, _TURNS = 4, 4, 6
_SYSTEM, _TASK, _ANSWER, _OBSERVATION = 32, 160, 16, 48


@dataclass(frozen=True, slots=True)
class Scope:
    router: str
    requests: int = 2000
    rate_s: float = 2.0
    rounds: int = 3
    kills: int = 3


def main() -> None:
    parts_of = {"latency": latency, "rates": rates, "kills": kills, "prefixes": prefixes}
    parser = arguments(__doc__, only=parts_of)
    parser.add_argument("--router", default=sys.executable, metavar="PYTHON", help=f"a Python that has {sides.ROUTER}")
    options = parser.parse_args()
    report, scope = Report("gateway", options.quick), Scope(options.router)
    if options.quick:
        scope = Scope(options.router, requests=200, rate_s=0.5, rounds=1, kills=1)
    with measured(report, options.json) as folder:
        sides.require_router(options.router)
        measures = {name: lambda report, own, part=part: part(report, own, scope) for name, part in parts_of.items()}
        measure_parts(report, measures, folder, options.only)


def latency(report: Report, folder: Path, scope: Scope) -> None:
    with ExitStack() as stack:
        engines = [(port, one.pid) for port, one in sides.start_engines(stack, 2, OUTPUT, 0)]
        taken = uvloop.run(_latency(stack.enter_context(sides.opened(folder / "sides", scope.router, engines)), scope))
    cuts = {name: statistics.quantiles(values, n=100) for name, values in taken.items()}
    report.detail["latency_ms"] = {
        name: {f"p{percent}": at[percent - 1] * 1e3 for percent in (50, 90, 99)} for name, at in cuts.items()
    }
    for percent in (50,) if report.quick else (50, 99):
        added = {name: at[percent - 1] - cuts[DIRECT][percent - 1] for name, at in cuts.items()}
        for name, path in CONTROLLED.items():
            ratio = added[name] / max(added[ROUTED], 1e-9)
            report.claim(f"added latency p{percent} of {path}, router 1", ratio, "x", 1, "lower")


async def _latency(compared: Sequence[Side], scope: Scope) -> dict[str, list[float]]:
    clients = [await Client.connect(side.port) for side in compared]
    taken: dict[str, list[float]] = defaultdict(list)
    for number in range(scope.requests + scope.requests // 10):
        ids = made_up(PROMPT)
        for side, client in zip(compared, clients, strict=True):
            request, began = side.request(ids, OUTPUT), time.perf_counter()
            status = await client.ask(request)
            if status != 200:
                raise RuntimeError(f"the {side.name} answered {status}: {client.body[:300]!r}")
            if number >= scope.requests // 10:  # Earlier requests warm up.
                taken[side.name].append(time.perf_counter() - began)
    return taken


def rates(report: Report, folder: Path, scope: Scope) -> None:
    done: dict[int, dict[str, Counter[str]]] = {count: defaultdict(Counter) for count in CONCURRENT}
    with ExitStack() as stack:
        engines = [(port, one.pid) for port, one in sides.start_engines(stack, 2, OUTPUT, 0)]
        compared = stack.enter_context(sides.opened(folder / "sides", scope.router, engines))
        for number in range(scope.rounds):
            for count in CONCURRENT:
                for side in (*compared[number:], *compared[:number]):
                    done[count][side.name] += uvloop.run(_rate(side, count, scope.rate_s))
    report.detail["rates"] = {
        count: {
            name: {"per_s": _per_s(one), "cpu_us": one["cpu_us"] / max(1, one["answered"]), "failed": one["failed"]}
            for name, one in counts.items()
        }
        for count, counts in done.items()
    }
    for count, counts in done.items():
        for name, path in CONTROLLED.items():
            ratio = _per_s(counts[name]) / max(1e-9, _per_s(counts[ROUTED]))
            report.claim(f"requests a second of {path}, {count} at once, router 1", ratio, "x", 1, "higher")
    failed = sum(counts[name]["failed"] for counts in done.values() for name in CONTROLLED)
    report.claim("requests that failed at these rates", failed, "requests", 0, "lower")


def _per_s(counts: Counter[str]) -> float:
    return counts["answered"] / counts["us"] * 1e6


async def _rate(side: Side, count: int, seconds: float) -> Counter[str]:
    done: Counter[str] = Counter()
    clients = [await Client.connect(side.port) for _ in range(count)]
    requests = [side.request(made_up(PROMPT), OUTPUT, f"s{number}") for number in range(count)]
    cpu_s, began = parts.cpu_s(side.pid), time.perf_counter()

    async def one(client: Client, request: bytes) -> None:
        while time.perf_counter() < began + seconds:
            done["answered" if await client.ask(request) == 200 else "failed"] += 1

    await asyncio.gather(*map(one, clients, requests))
    done["us"] = round(1e6 * (time.perf_counter() - began))
    done["cpu_us"] = round(1e6 * (parts.cpu_s(side.pid) - cpu_s))
    return done


def kills(report: Report, folder: Path, scope: Scope) -> None:
    trials = []
    for number in range(scope.kills):
        with ExitStack() as stack:
            engines = sides.start_engines(stack, 3, OUTPUT, _KILL_TURN_S)
            ports = [(port, one.pid) for port, one in engines]
            compared = stack.enter_context(sides.opened(folder / f"trial-{number}", scope.router, ports))
            trials.append(uvloop.run(_kill([side for side in compared if side.name != DIRECT], engines[1][1])))
    report.detail["kills"] = trials
    for name, path in CONTROLLED.items():
        failed, router_failed = (sum(trial[one]["failed"] for trial in trials) for one in (name, ROUTED))
        claim = f"requests that failed after an engine was killed, {path} (target: router)"
        report.claim(claim, failed, "requests", router_failed, "lower")
        ours, routers = (statistics.median(trial[one]["recovered_s"] for trial in trials) for one in (name, ROUTED))
        report.claim(f"recovery after an engine was killed, {path}, router 1", ours / routers, "x", 1, "lower")


async def _kill(compared: Sequence[Side], engine: Any) -> dict[str, dict[str, float]]:
    """Return by side how many requests failed, and when the last disturbed request ended after the kill."""
    answers: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    began = time.perf_counter()
    killed, until = began + 8 * _KILL_TURN_S, began + 24 * _KILL_TURN_S

    async def one(side: Side, number: int) -> None:
        client, session = await Client.connect(side.port), f"{side.name}-{number}"
        while (sent := time.perf_counter()) < until:
            status = await client.ask(side.request(made_up(PROMPT), OUTPUT, session))
            answers[side.name].append((sent, time.perf_counter(), status == 200))
            if not status:
                client = await Client.connect(side.port)

    working = [asyncio.create_task(one(side, number)) for side in compared for number in range(_KILL_CLIENTS)]
    await asyncio.sleep(killed - time.perf_counter())
    engine.kill()
    engine.wait()
    killed = time.perf_counter()
    await asyncio.gather(*working)
    figures = {}
    for name, requests in answers.items():
        slowest = max(ended - sent for sent, ended, _ in requests if ended < killed)
        after = [(ended - killed, ended - sent, well) for sent, ended, well in requests if ended >= killed]
        disturbed = [at for at, took, well in after if not well or took > slowest + _KILL_TURN_S / 2]
        figures[name] = {
            "failed": sum(not well for _, _, well in after),
            "recovered_s": max([_KILL_TURN_S, *disturbed]),
            "slowest_s": max(took for _, took, _ in after),
            "slowest_before_s": slowest,
        }
    return figures


def prefixes(report: Report, folder: Path, scope: Scope) -> None:
    if report.quick:
        report.detail["prefixes"] = {"skipped": "by --quick: an engine takes half a minute to start"}
        return
    tokens: dict[str, Counter[str]] = defaultdict(Counter)
    with ExitStack() as stack:
        engines = sides.start_sglang(stack, 2, folder)
        opened = stack.enter_context(sides.opened(folder / "sides", scope.router, engines))
        compared = [side for side in opened if side.name in (ROUTED, GENERATE)]
        for number in range(scope.rounds):
            for side in compared[:: -1 if number % 2 else 1]:
                tokens[side.name] += uvloop.run(_trajectories(side, number))
    hits = {name: counts["cached"] / counts["prompt"] for name, counts in tokens.items()}
    report.detail["prefixes"] = {
        name: {"hit_rate": hits[name], "turns_per_s": counts["turns"] / counts["us"] * 1e6, **counts}
        for name, counts in tokens.items()
    }
    ratio = hits[GENERATE] / max(hits[ROUTED], 1e-9)
    report.claim("prefix hits on multi-turn traffic, router 1", ratio, "x", 1, "higher")


async def _trajectories(side: Side, round_number: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    system = made_up(_SYSTEM)

    async def one(task: list[int], name: str) -> None:
        client, ids = await Client.connect(side.port), [*system, *task]
        for _ in range(_TURNS):
            status = await client.ask(side.request(ids, _ANSWER, name))
            answer = json.loads(client.body)
            if status != 200:
                raise RuntimeError(f"the {side.name} answered {status}: {answer}")
            counts.update(prompt=len(ids), cached=answer["meta_info"]["cached_tokens"], turns=1)
            ids += answer["output_ids"] + made_up(_OBSERVATION)

    began = time.perf_counter()
    tasks = [made_up(_TASK) for _ in range(_GROUPS)]
    await asyncio.gather(
        *(one(task, f"{round_number}-{group}-{number}") for group, task in enumerate(tasks) for number in range(_GROUP))
    )
    counts["us"] = round(1e6 * (time.perf_counter() - began))
    return counts


if __name__ == "__main__":
    main()
