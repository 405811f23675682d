"""A simulated run as a ledger on disk, and what `rose report --json` shows of it: the same functions, wired up."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from benchmarks import price_book
from benchmarks.coverage import groups
from benchmarks.coverage.groups import Run
from benchmarks.coverage.shown import Shown, shown
from rose import cli, events
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import cost_per_correct
from rose.pricing.stats import bootstrap

T0_NS = 1_780_272_000_000_000_000
#: Each group has the devices for as long; what it does not need of it is idle.
FRAME_NS = 3600 * 10**9
BOOK = price_book.toml(
    "simulated",
    *(
        price_book.device("simulated", usd, pool=pool, energy_included=True)
        for pool, usd in (("serving", "2.0"), ("rollout", "2.5"))
    ),
    price_book.electricity("0"),
    price_book.LENDING,
    price_book.TOKENS,
)
POOLS = {"borrowed": "serving", "dedicated": "rollout"}


def write(root: Path, run: Run) -> None:
    """The run's events, of provenance simulated."""
    end_ns = T0_NS + len(run.groups.rows) * FRAME_NS
    with LedgerWriter.open(root, "simulated", "run", "simulated") as ledger:

        def record(event: events.Event) -> None:
            ledger.record(event, durable=False)

        record(events.Run(action="started", name="simulated", at_us=T0_NS // 1000))
        for pool in POOLS.values():
            record(_device("joined", pool, T0_NS))
        lease: dict[str, Any] = {
            "lease_id": "l",
            "device_id": "serving",
            "kv_budget_bytes": 1,
            "compute_share": 1.0,
            "expires_at_us": end_ns // 1000,
        }
        record(events.Lease(action="granted", at_us=T0_NS // 1000, **lease))
        for number, group in enumerate(run.groups.rows):
            for event in _group(number, group, run):
                record(event)
        record(events.Lease(action="released", at_us=end_ns // 1000, **lease))
        for pool in POOLS.values():
            record(_device("left", pool, end_ns))
        record(events.Run(action="ended", name="simulated", at_us=end_ns // 1000))


def _device(action: Any, pool: Any, at_ns: int) -> events.Device:
    return events.Device(
        action=action, device_id=pool, t_ns=at_ns, pool=pool, device_class="simulated", at_us=at_ns // 1000
    )


def _group(number: int, group: Any, run: Run) -> Iterator[events.Event]:
    t0_ns = T0_NS + number * FRAME_NS
    middle_us = (t0_ns + FRAME_NS // 2) // 1000
    named: dict[str, Any] = {"group_id": group["group_id"], "step": group["step"], "at_us": middle_us}
    for turn, (place, pool) in enumerate(POOLS.items()):
        rollout_ns = run.group_ns[place][number]
        buckets: dict[str, Any] = {f"{bucket}_ns": 0 for bucket in events.BUCKETS}
        buckets |= {"rollout_ns": rollout_ns, "idle_ns": FRAME_NS - rollout_ns}
        lease_id = "l" if pool == "serving" else None
        yield events.DeviceSlice(
            device_id=pool, lease_id=lease_id, t0_ns=t0_ns, t1_ns=t0_ns + FRAME_NS, at_us=middle_us, **buckets
        )
        yield events.Turn(
            trajectory_id=f"{number}-0",
            turn=turn,
            attempt=0,
            outcome="completed",
            device_id=pool,
            lease_id=lease_id,
            placement="lease" if lease_id else "dedicated",
            prompt_tokens=1,
            cached_tokens=0,
            answer_tokens=0,
            queue_ns=0,
            duration_ns=0,
            policy_version=0,
            output_tokens=group[f"{place}_tokens"],
            **named,
        )
    for n in range(group["trajectories"]):
        made: dict[str, Any] = {name: group[name] if n == 0 else 0 for name in ("output_tokens", "answer_tokens")}
        yield events.Trajectory(
            trajectory_id=f"{number}-{n}",
            task="simulated",
            outcome="finished",
            turns=1,
            prompt_tokens=1,
            staleness=0,
            duration_ns=1,
            **made,
            **named,
        )
        accepted = n < group["accepted"]
        yield events.Verdict(
            trajectory_id=f"{number}-{n}",
            verifier="simulated",
            reward=float(accepted),
            threshold=1.0,
            accepted=accepted,
            stale=not group["judged"],
            correct=n < group["audited_correct"] if n < group["audited"] else None,
            **named,
        )


def reported(root: Path, book: Path) -> dict[str, Any]:
    """The figures of `rose report --json`."""
    done = CliRunner().invoke(cli.app, ["report", "--json", "--ledger", str(root), "--price-book", str(book)])
    if done.exit_code:
        raise RuntimeError(f"rose report failed: {done.output}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def ledgers(random: np.random.Generator) -> Iterator[Shown]:
    """What the command shows of a ledger; raises AssertionError where the functions by themselves differ."""
    run, truth = groups.simulate(random), groups.truths()
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        root, book = Path(folder) / "ledger", Path(folder) / "book.toml"
        book.write_text(BOOK)
        write(root, run)
        report = reported(root, book)
    expected = {one.figure: one for one in _by_itself(run)}
    figures = dict(report["factors"]) | {
        f"per accepted, {line}": report["cost_per_correct"][line]["measured"] for line in ("serving", "dedicated")
    }
    for name, one in expected.items():
        figure = figures[name]
        scale = 1e9 if figure["unit"].startswith("nano_usd") else 1
        low, high = figure["low"] / scale, figure["high"] / scale
        # Dollars of a report are whole nano-dollars.
        alike = math.isclose(low, one.low or 0, rel_tol=1e-4) and math.isclose(high, one.high or 0, rel_tol=1e-4)
        assert alike, f"{name}: the report shows {low} to {high}, the functions give {one.low} to {one.high}"
        yield Shown(f"rose report --json: {name}", truth[name], low, high)


def _by_itself(run: Run) -> Iterator[Shown]:
    found, price = run.groups, groups.priced(run, np.random.default_rng(0))
    drawn = cost_per_correct.resample(found)
    assert drawn is not None
    shares = {"alpha": ("solved", "one"), "accept_rate": ("accepted", "judged"), "ppv": ("audited_correct", "audited")}
    for name, columns in shares.items():
        yield shown(name, 0, cost_per_correct.share_interval(found, *columns))
    for name in ("rho", "r", "phi"):
        yield shown(name, 0, bootstrap.interval(getattr(drawn, name), drawn.units))
    for line in ("serving", "dedicated"):
        yield shown(
            f"per accepted, {line}", 0, cost_per_correct.measured_interval(price, run.tokens, found, drawn, line)[0]
        )
