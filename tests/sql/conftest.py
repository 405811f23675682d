"""A small run whose numbers can be worked out by hand, and a copy of the recorded one."""

import json
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pytest

from rose import events
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import close_epochs

ROOT = Path(__file__).parents[2]
SECOND = 1_000_000_000
#: 2026-11-02T10:00:00 UTC, in seconds since the Unix epoch: the start of the small run.
START_S = 1_793_613_600

ByHand = Callable[..., list[dict[str, Any]]]


def at(seconds):
    """`seconds` into the run, in UTC microseconds."""
    return START_S * 1_000_000 + round(seconds * 1e6)


def ns(seconds):
    return at(seconds) * 1000


def _slice(device, t0, t1, lease_id=None, **seconds):
    named = {f"{name}_ns": length * SECOND for name, length in {**dict.fromkeys(events.BUCKETS, 0), **seconds}.items()}
    return events.DeviceSlice(at_us=at(t1), device_id=device, lease_id=lease_id, t0_ns=ns(t0), t1_ns=ns(t1), **named)


def _lease(lease_id, action, seconds, step, **fields):
    usual = {"kv_budget_bytes": 100, "compute_share": 1.0, "expires_at_us": at(seconds + 3)}
    return events.Lease(
        at_us=at(seconds),
        device_id="s0",
        engine_id="s0-rollout",
        lease_id=lease_id,
        action=action,
        step=step,
        **{**usual, **fields},
    )


def _taken(action, seconds, lease_id, **fields):
    where = {"device_id": "s0", "engine_id": "s0-rollout", "lease_id": lease_id}
    return events.Preemption(at_us=at(seconds), action=action, **where, **fields)


def turn(trajectory, seconds, place, **fields):
    device, lease_id, placement = place
    zeros = ("step", "turn", "attempt", "cached_tokens", "output_tokens", "queue_ns", "policy_version")
    usual = dict.fromkeys(zeros, 0) | {"prompt_tokens": 10, "answer_tokens": 1, "duration_ns": SECOND}
    return events.Turn(
        at_us=at(seconds),
        trajectory_id=trajectory,
        group_id="g",
        device_id=device,
        engine_id=f"{device}-rollout",
        lease_id=lease_id,
        placement=placement,
        **{"outcome": "completed", **usual, **fields},
    )


def _trajectory(name, version, step, tokens, **fields):
    usual = {"task": "t", "outcome": "finished", "turns": 1, "prompt_tokens": 10, "answer_tokens": 1, "staleness": 0}
    return events.Trajectory(
        at_us=at(45 + 50 * step),
        trajectory_id=name,
        group_id="g",
        step=step,
        policy_version=version,
        output_tokens=tokens,
        duration_ns=SECOND,
        **{**usual, **fields},
    )


def _verdict(name, step, *, accepted, **fields):
    return events.Verdict(
        at_us=at(49 + 50 * step),
        trajectory_id=name,
        group_id="g",
        step=step,
        verifier="v",
        reward=float(accepted),
        threshold=1.0,
        accepted=accepted,
        **fields,
    )


def _request(name, seconds, e2e, ttft_ns, **fields):
    usual = {"outcome": "completed", "tpot_mean_ns": 10, "tpot_max_ns": 10}
    return events.Request(
        at_us=at(seconds),
        request_id=name,
        device_id="s0",
        engine_id="s0-serving",
        prompt_tokens=4,
        output_tokens=2,
        ttft_ns=ttft_ns,
        e2e_ns=e2e * SECOND,
        ttft_budget_ns=100,
        tpot_budget_ns=10,
        send_delay_ns=0,
        **{**usual, **fields},
    )


def _sync(device, seconds, wire, **fields):
    usual = {"ok": True, "base_version": 0, "encoding": "delta", "policy_version": 1, "pause_ns": SECOND // 100}
    return events.Sync(
        at_us=at(seconds),
        device_id=device,
        engine_id=f"{device}-rollout",
        wire_bytes=wire,
        dense_bytes=1000,
        total_ns=SECOND,
        source="trainer",
        route="loopback",
        step=0,
        **{**usual, **fields},
    )


def _engine(engine, action, seconds, **fields):
    device, _, role = engine.partition("-")
    return events.Engine(
        at_us=at(seconds), device_id=device, engine_id=engine, action=action, role=role, model="m", **fields
    )


def _step(step):
    counts = {"groups": 1, "trajectories": 2 + step, "trajectories_accepted": 1, "tokens_trained": 30}
    training = {"reward_mean": 0.5, "loss": 0.0, "entropy": None, "kl": None, "grad_norm": None}
    seconds = {"rollout_ns": 40, "train_ns": 8, "sync_ns": 1, "total_ns": 50}
    times = {name: length * SECOND for name, length in seconds.items()}
    return events.Step(at_us=at(50 + 50 * step), step=step, policy_version=step + 1, **counts, **training, **times)


def _devices():
    found = []
    for device, pool in (("s0", "serving"), ("d0", "rollout")):
        for action, seconds in (("joined", 0), ("left", 100)):
            found.append(
                events.Device(
                    at_us=at(seconds), device_id=device, action=action, t_ns=ns(seconds), pool=pool, device_class="c"
                )
            )
    return found


def small_run():
    """Two devices for 100 s, three leases, five trajectories, four requests: every kind of event."""
    traffic = {"trace": "bursty", "trace_keep_share": 0.5, "trace_length_scale": 0.1, "trace_time_scale": 1.0}
    dropped = {"count": 4, "kinds": {"turn": {"count": 3, "output_tokens": 9}, "request": {"count": 1}}}
    return [
        events.Run(
            at_us=at(0), action="started", name="small", config_json='{"coserving":{"stretch":1.25}}', **traffic
        ),
        *_devices(),
        _engine("s0-serving", "started", 0, duration_ns=4 * SECOND),
        _engine("s0-rollout", "started", 0, duration_ns=4 * SECOND),
        _engine("d0-rollout", "started", 0, duration_ns=2 * SECOND),
        _engine("d0-rollout", "died", 60, reason="the process ended"),
        _engine("d0-rollout", "started", 65, duration_ns=3 * SECOND),
        _engine("d0-rollout", "stopped", 100),
        _slice("s0", 0, 20, serving=8, idle=12),
        _slice("s0", 20, 50, "L1", serving=10, rollout=15, headroom=2, idle=3, beside=5, beside_work=3, delayed=6),
        _slice("s0", 50, 60, sync=1, idle=6, headroom=3),
        _slice("s0", 60, 90, "L2", serving=20, rollout=5, headroom=5, beside=5, beside_work=3, delayed=3),
        _slice("s0", 90, 100, activation=4, idle=6),
        _slice("d0", 0, 50, rollout=30, train=10, idle=10),
        _slice("d0", 50, 100, rollout=30, train=20),
        _lease("L1", "granted", 20, 0),
        _lease("L1", "renewed", 30, 0),
        _lease("L1", "resized", 40, 0, kv_budget_bytes=50),
        _lease("L1", "released", 50, 0, reason="rollouts are in"),
        _lease("L2", "granted", 60, 1),
        _lease("L2", "preempted", 90, 1, reason="serving is late"),
        _lease("L3", "granted", 95, 1),
        _taken("cut", 40, "L1", reason="pressure", kv_budget_bytes_before=100, kv_budget_bytes_after=50, requests=1),
        _taken("yield", 65, "L2", reason="serving_step", duration_ns=SECOND // 2),
        _taken("yield", 70, "L2", reason="serving_step", duration_ns=3 * SECOND // 2),
        _taken(
            "yield",
            75.5,
            "L2",
            reason="serving_step",
            count=3,
            duration_ns=6 * SECOND // 10,
            longest_ns=3 * SECOND // 10,
            latency_ns=4_000,
            latency_mean_ns=3_000,
        ),
        events.Hold(at_us=at(76), device_id="s0", lease_id="L2", reason="regret", count=5, duration_ns=SECOND),
        events.StepTime(
            at_us=at(80),
            device_id="s0",
            engine_id="s0-serving",
            role="serving",
            mode="decode",
            steps=9,
            error_share=0.1,
        ),
        _taken("revoke", 89.9, "L2", reason="serving is late", requests=2, tokens_lost=7),
        _sync("d0", 52, 40, ok=False, reason="the hash differs", pause_ns=None),
        _sync("s0", 55, 100),
        _sync(
            "d0",
            56,
            1000,
            encoding="dense",
            base_version=None,
            pause_ns=3 * SECOND // 100,
            fetch_ns=7,
            verify_ns=3,
            acknowledge_ns=2,
        ),
        turn("t1", 30, ("s0", "L1", "lease"), output_tokens=20, queue_ns=SECOND // 10),
        turn("t1", 35, ("s0", "L1", "prefix"), turn=1, prompt_tokens=30, cached_tokens=24, output_tokens=10),
        turn("t4", 40, ("d0", None, "least_loaded"), output_tokens=30),
        turn("t3", 80, ("d0", None, "least_loaded"), step=1, outcome="failed", output_tokens=4),
        turn("t5", 85, ("d0", None, "least_loaded"), step=1, output_tokens=20),
        turn(
            "t2",
            95,
            ("s0", "L2", "lease"),
            step=1,
            outcome="preempted",
            output_tokens=5,
            queue_ns=SECOND // 2,
            duration_ns=4 * SECOND,
        ),
        turn(
            "t2",
            95,
            ("d0", None, "queue"),
            step=1,
            attempt=1,
            prompt_tokens=15,
            cached_tokens=5,
            output_tokens=15,
            queue_ns=SECOND,
            duration_ns=4 * SECOND,
        ),
        _trajectory("t1", 0, 0, 30),
        _trajectory("t4", 0, 0, 30, staleness=2),
        _trajectory("t2", 1, 1, 20),
        _trajectory("t3", 1, 1, 4, outcome="lost"),
        _trajectory("t5", 0, 1, 20, staleness=1),
        _verdict("t1", 0, accepted=True, correct=True),
        _verdict("t4", 0, accepted=True, correct=True, stale=True),
        _verdict("t2", 1, accepted=False),
        _verdict("t5", 1, accepted=True),
        _step(0),
        _step(1),
        _request("q1", 10, 1, 100),
        _request("q2", 30, 1, 90, lease_id="L1"),
        _request("q3", 90.5, 2, 500, lease_id="L2"),
        _request("q4", 92, 3, None, lease_id="L2", outcome="failed", reason="reset", tpot_mean_ns=None),
        events.Power(at_us=at(50), device_id="s0", t0_ns=ns(0), t1_ns=ns(50), power_mw=100_000, source="rapl"),
        events.Power(at_us=at(100), device_id="s0", t0_ns=ns(50), t1_ns=ns(100), power_mw=200_000, source="rapl"),
        events.Power(at_us=at(100), device_id="d0", t0_ns=ns(0), t1_ns=ns(100), power_mw=None, source="not measured"),
        events.LedgerAction(at_us=at(90), action="dropped", detail_json=json.dumps(dropped)),
        events.Run(at_us=at(100), action="ended", name="small"),
    ]


def _record(root, recorded, provenance="live"):
    with LedgerWriter.open(root, f"w-{provenance}", "r", provenance) as writer:
        for event in recorded:
            writer.record(event, durable=False)
    return root


@pytest.fixture(scope="session")
def record():
    return _record


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return _record(tmp_path_factory.mktemp("small") / "ledger", small_run())


@pytest.fixture(scope="session")
def mixed(tmp_path_factory):
    """The same run twice, live and simulated, under one run_id and with other numbers in the simulated one."""
    root = _record(tmp_path_factory.mktemp("mixed") / "ledger", small_run())
    later = []
    for event in small_run():
        fields = asdict(event)
        for name in ("output_tokens", "e2e_ns", "wire_bytes", "power_mw", "queue_ns"):
            if fields.get(name):
                fields[name] *= 2
        later.append(type(event)(**fields))
    return _record(root, later, "simulated")


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    """A copy of the recorded sample ledger, its epochs closed and merged: some 25 files are read faster than 345."""
    recorded = ROOT / "sample_traces" / "ledger"
    if not recorded.exists():
        pytest.skip("sample_traces/ledger is not recorded yet; CONTRIBUTING.md says how")
    root = tmp_path_factory.mktemp("sample") / "ledger"
    shutil.copytree(recorded, root)
    close_epochs(root)
    compaction.compact(Ledger(root), grace_s=0)
    compaction.compact(Ledger(root), grace_s=0)
    return root


@pytest.fixture(scope="session")
def by_hand():
    """Runs a named query as a user would by hand: in the ledger's folder, after SET VARIABLE and nothing else."""
    opened = {}
    whole = {}

    def run(root, name, **variables):
        if not variables:
            # No ledger changes here any more: several tests read all rows of a query.
            whole[root, name] = whole.get((root, name)) or ask(root, name)
            return whole[root, name]
        return ask(root, name, **variables)

    def ask(root, name, **variables):
        with chdir(root):
            if root not in opened:
                opened[root] = duckdb.connect("ledger.duckdb", read_only=True)
                # Opening its files takes longer than all else.
                opened[root].execute("SET parquet_metadata_cache = true")
            connection = opened[root]
            for variable, literal in variables.items():
                connection.execute(f"SET VARIABLE {variable} = {literal}")
            cursor = connection.execute(named.load(name).text)
            columns = [item[0] for item in cursor.description or []]
            types = {item[0]: str(item[1]) for item in cursor.description or []}
            rows = cursor.fetchall()
            for variable in variables:
                connection.execute(f"RESET VARIABLE {variable}")
        # Python takes any width of integer; other clients make a float of this one.
        assert "HUGEINT" not in types.values(), types
        return [dict(zip(columns, row, strict=True)) for row in rows]

    yield run
    for connection in opened.values():
        connection.close()
