"""Made-up events in the mix and with the spread of values that a co-serving fleet writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rose.events import Device, Record, Run, Turn

#: Share of each kind, by what a device writes in an hour: a slice a second, requests, turns, yields, renewals.
MIX = {
    "device_slice": 0.38,
    "request": 0.30,
    "turn": 0.15,
    "trajectory": 0.04,
    "verdict": 0.04,
    "preemption": 0.04,
    "lease": 0.04,
    "sync": 0.01,
}
DEVICES = 16
EPOCH_US = 1_790_000_000_000_000
#: Time between two events: each device has a slice a second.
STEP_US = round(1_000_000 * MIX["device_slice"] / DEVICES)

Columns = dict[str, Any]


def batch(first: int, count: int, rng: np.random.Generator, run_id: str = "r") -> pa.Table:
    """`count` events of all kinds from number `first` on, in the order of their time."""
    kinds = rng.choice(len(MIX), size=count, p=list(MIX.values()))
    at_us = EPOCH_US + STEP_US * np.arange(first, first + count)
    parts = []
    for index, kind in enumerate(MIX):
        where = np.flatnonzero(kinds == index)
        if len(where) == 0:
            continue
        n = len(where)
        device = rng.integers(0, DEVICES, n)
        step = (first + where) // 200_000
        columns: Columns = {
            "run_id": np.full(n, run_id, dtype=object),
            "provenance": np.full(n, "simulated", dtype=object),
            "at_us": at_us[where],
            "kind": np.full(n, kind, dtype=object),
            "device_id": _names("gpu", device),
            **_MAKERS[kind](n, rng, device, at_us[where], step),
        }
        parts.append(pa.table({name: pa.array(values) for name, values in columns.items()}))
    return pa.concat_tables(parts, promote_options="default").sort_by("at_us")


def begin(record: Record) -> None:
    """The events that a run begins with: itself and its devices."""
    record(Run(at_us=EPOCH_US, action="started", name="made up"))
    for number in range(DEVICES):
        record(
            Device(
                at_us=EPOCH_US,
                device_id=f"gpu{number:03d}",
                action="joined",
                t_ns=EPOCH_US * 1000 - 1_000_000_000,
                pool="serving",
                device_class="h100-sxm",
            )
        )


def turn(number: int) -> Turn:
    """One event as the runtime records it."""
    return Turn(
        device_id=f"gpu{number % DEVICES:03d}",
        engine_id=f"gpu{number % DEVICES:03d}-rollout",
        lease_id=f"r-gpu{number % DEVICES:03d}-{number // 5000}",
        trajectory_id=f"r-s{number // 5000}-g{number // 64}-{number % 8}",
        policy_version=number // 5000,
        group_id=f"r-s{number // 5000}-g{number // 64}",
        step=number // 5000,
        turn=number % 8,
        attempt=0,
        outcome="completed",
        placement="prefix" if number % 8 else "lease",
        prompt_tokens=180 + number % 150,
        cached_tokens=150 + number % 60,
        output_tokens=20 + number % 40,
        answer_tokens=2,
        queue_ns=1_000_000 + number * 7919 % 5_000_000,
        duration_ns=300_000_000 + number * 104_729 % 900_000_000,
    )


def _names(prefix: str, numbers: Any) -> Any:
    return np.array([f"{prefix}{number:03d}" for number in range(int(numbers.max(initial=-1)) + 1)], dtype=object)[
        numbers
    ]


def _leases(device: Any, step: Any) -> Any:
    return np.array([f"r-gpu{d:03d}-{s}" for d, s in zip(device.tolist(), step.tolist(), strict=True)], dtype=object)


def _maybe(values: Any, rng: np.random.Generator, share: float) -> Any:
    kept = values.copy()
    kept[rng.random(len(values)) >= share] = None
    return kept


def _slice(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    # From where the device's last one ended, so that no time is reported twice; the first since the event before it.
    began_us, in_order = at_us - STEP_US, np.lexsort((at_us, device))
    later, earlier = in_order[1:], in_order[:-1]
    follows = device[later] == device[earlier]
    began_us[later[follows]] = at_us[earlier[follows]]
    length = 1000 * (at_us - began_us)
    cuts = (np.sort(rng.random((n, 3)), axis=1) * length[:, None]).astype(np.int64)
    zero = np.zeros(n, dtype=np.int64)
    lent = rng.random(n) < 0.6
    lease = _leases(device, step)
    lease[~lent] = None
    return {
        "lease_id": lease,
        "t0_ns": began_us * 1000,
        "t1_ns": at_us * 1000,
        "serving_ns": cuts[:, 0],
        "rollout_ns": np.where(lent, cuts[:, 1] - cuts[:, 0], 0),
        "train_ns": zero,
        "sync_ns": zero,
        "activation_ns": zero,
        "headroom_ns": np.where(lent, cuts[:, 2] - cuts[:, 1], 0),
        "idle_ns": length - np.where(lent, cuts[:, 2], cuts[:, 0]),
        "overlap_ns": zero,
    }


def _request(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    ttft = rng.lognormal(18.5, 0.5, n).astype(np.int64)
    tpot = rng.lognormal(16.8, 0.2, n).astype(np.int64)
    tokens = rng.integers(1, 400, n)
    return {
        "engine_id": _names("gpu", device) + "-serving",
        "lease_id": _maybe(_leases(device, step), rng, 0.6),
        "request_id": np.array([f"q{number}" for number in (at_us - EPOCH_US) // STEP_US], dtype=object),
        "outcome": np.full(n, "completed", dtype=object),
        "prompt_tokens": rng.integers(20, 4000, n),
        "output_tokens": tokens,
        "ttft_ns": ttft,
        "tpot_mean_ns": tpot,
        "tpot_max_ns": tpot * 2,
        "e2e_ns": ttft + tpot * tokens,
        "ttft_budget_ns": np.full(n, 500_000_000),
        "tpot_budget_ns": np.full(n, 50_000_000),
        "send_delay_ns": rng.integers(0, 100_000, n),
    }


def _turn(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    group = (at_us - EPOCH_US) // STEP_US // 400
    lent = rng.random(n) < 0.5
    lease = _leases(device, step)
    lease[~lent] = None
    return {
        "engine_id": _names("gpu", device) + "-rollout",
        "lease_id": lease,
        "trajectory_id": np.array(
            [f"r-g{g}-{m}" for g, m in zip(group, rng.integers(0, 8, n), strict=True)], dtype=object
        ),
        "policy_version": step,
        "group_id": np.array([f"r-g{g}" for g in group], dtype=object),
        "step": step,
        "turn": rng.integers(0, 8, n),
        "attempt": np.zeros(n, dtype=np.int64),
        "outcome": np.array(["completed", "preempted"], dtype=object)[(rng.random(n) < 0.03).astype(int)],
        "placement": np.array(["prefix", "lease", "least_loaded"], dtype=object)[rng.choice(3, n, p=[0.8, 0.15, 0.05])],
        "prompt_tokens": rng.integers(180, 330, n),
        "cached_tokens": rng.integers(150, 180, n),
        "output_tokens": rng.integers(20, 60, n),
        "answer_tokens": np.full(n, 2),
        "queue_ns": rng.integers(1_000_000, 6_000_000, n),
        "duration_ns": rng.integers(300_000_000, 1_200_000_000, n),
    }


def _trajectory(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    group = (at_us - EPOCH_US) // STEP_US // 400
    return {
        "trajectory_id": np.array(
            [f"r-g{g}-{m}" for g, m in zip(group, rng.integers(0, 8, n), strict=True)], dtype=object
        ),
        "policy_version": step,
        "group_id": np.array([f"r-g{g}" for g in group], dtype=object),
        "step": step,
        "task": np.full(n, "frozenlake", dtype=object),
        "outcome": np.full(n, "finished", dtype=object),
        "turns": rng.integers(1, 8, n),
        "prompt_tokens": rng.integers(200, 2000, n),
        "output_tokens": rng.integers(20, 400, n),
        "answer_tokens": rng.integers(2, 16, n),
        "staleness": rng.integers(0, 3, n),
        "duration_ns": rng.integers(10**9, 10**10, n),
    }


def _verdict(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    group = (at_us - EPOCH_US) // STEP_US // 400
    accepted = rng.random(n) < 0.6
    return {
        "trajectory_id": np.array(
            [f"r-g{g}-{m}" for g, m in zip(group, rng.integers(0, 8, n), strict=True)], dtype=object
        ),
        "group_id": np.array([f"r-g{g}" for g in group], dtype=object),
        "step": step,
        "verifier": np.full(n, "goal", dtype=object),
        "reward": accepted.astype(float),
        "threshold": np.full(n, 0.5),
        "accepted": accepted,
        "correct": accepted,
        "stale": rng.random(n) < 0.02,
    }


def _preemption(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    return {
        "engine_id": _names("gpu", device) + "-rollout",
        "lease_id": _leases(device, step),
        "action": np.array(["yield", "revoke"], dtype=object)[(rng.random(n) < 0.02).astype(int)],
        "reason": np.full(n, "a serving step", dtype=object),
        "step": step,
        "duration_ns": rng.integers(10**6, 10**8, n),
    }


def _lease(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    return {
        "engine_id": _names("gpu", device) + "-rollout",
        "lease_id": _leases(device, step),
        "action": np.full(n, "renewed", dtype=object),
        "kv_budget_bytes": np.full(n, 8 << 30),
        "compute_share": np.full(n, 1.0),
        "expires_at_us": at_us + 3_000_000,
        "step": step,
    }


def _sync(n: int, rng: np.random.Generator, device: Any, at_us: Any, step: Any) -> Columns:
    dense = np.full(n, 15 << 30)
    return {
        "engine_id": _names("gpu", device) + "-rollout",
        "policy_version": step,
        "ok": np.full(n, True),
        "base_version": np.maximum(step - 1, 0),
        "encoding": np.full(n, "delta", dtype=object),
        "wire_bytes": rng.integers(10**8, 10**9, n),
        "dense_bytes": dense,
        "pause_ns": rng.integers(10**6, 10**7, n),
        "total_ns": rng.integers(10**8, 10**9, n),
        "source": np.full(n, "relay-0", dtype=object),
        "route": np.full(n, "intra-zone", dtype=object),
        "step": step,
    }


_MAKERS = {
    "device_slice": _slice,
    "request": _request,
    "turn": _turn,
    "trajectory": _trajectory,
    "verdict": _verdict,
    "preemption": _preemption,
    "lease": _lease,
    "sync": _sync,
}
