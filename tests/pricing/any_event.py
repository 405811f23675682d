"""Events with a plain value in each field that a test does not speak of."""

from __future__ import annotations

from typing import Any

from rose import events


def turn(**fields: Any) -> events.Turn:
    plain: dict[str, Any] = {
        "placement": "lease",
        "queue_ns": 0,
        "duration_ns": 1,
        "outcome": "completed",
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "turn": 0,
        "attempt": 0,
        "output_tokens": 1,
    }
    return events.Turn(**(plain | fields))


def sync(**fields: Any) -> events.Sync:
    plain: dict[str, Any] = {
        "base_version": None,
        "encoding": "dense",
        "total_ns": 1,
        "source": "relay",
        "ok": True,
        "route": "inter-region",
        "wire_bytes": 1,
        "dense_bytes": 1,
    }
    return events.Sync(**(plain | fields))


def request(**fields: Any) -> events.Request:
    plain: dict[str, Any] = {
        "outcome": "completed",
        "prompt_tokens": 1,
        "output_tokens": 1,
        "tpot_mean_ns": None,
        "tpot_max_ns": None,
        "send_delay_ns": 0,
        "ttft_budget_ns": 1,
        "tpot_budget_ns": 1,
        "ttft_ns": 1,
        "e2e_ns": 1000,
    }
    return events.Request(**(plain | fields))


def verdict(**fields: Any) -> events.Verdict:
    plain: dict[str, Any] = {
        "verifier": "v",
        "threshold": 1.0,
        "group_id": "g",
        "step": 1,
        "reward": 1.0,
        "accepted": False,
    }
    return events.Verdict(**(plain | fields))


def trajectory(**fields: Any) -> events.Trajectory:
    plain: dict[str, Any] = {
        "turns": 1,
        "prompt_tokens": 1,
        "staleness": 0,
        "duration_ns": 1,
        "task": "maze",
        "group_id": "g",
        "step": 1,
        "outcome": "finished",
        "output_tokens": 1,
    }
    return events.Trajectory(**(plain | fields))


def lease(**fields: Any) -> events.Lease:
    plain: dict[str, Any] = {"kv_budget_bytes": 1, "compute_share": 1.0, "action": "granted"}
    return events.Lease(**(plain | fields))


def engine(**fields: Any) -> events.Engine:
    plain: dict[str, Any] = {"role": "rollout", "model": "m", "action": "started"}
    return events.Engine(**(plain | fields))


def scale_down(**fields: Any) -> events.ScaleDown:
    plain: dict[str, Any] = {"device_class": "h100-sxm", "decision": "kept", "decided_by": "Kim"}
    return events.ScaleDown(**(plain | fields))
