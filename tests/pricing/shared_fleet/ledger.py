import json
from collections.abc import Iterator
from typing import Any

from rose import events
from rose.pricing.price_books import pricebook
from tests.pricing import any_event
from tests.pricing.closing.conftest import BOOK_TOML, T0_NS, S, us

BOOK_TEXT = f"""{BOOK_TOML}
[[power]]
class = "h100-sxm"
idle_w = 267
load_w = 680
source = "spec sheet"
source_date = 2026-01-01
"""
BOOK = pricebook.parse(BOOK_TEXT, "book.toml")
RUNS = ("fleet", "red", "blue")


def slice_(from_s: int, device_id: str, run_id: str | None, lease_id: str | None, **seconds: int) -> events.Event:
    return any_event.slice_(T0_NS + from_s * S, device_id, lease_id=lease_id, unit_ns=S, rl_run_id=run_id, **seconds)


def joined(device_id: str = "s0", at_s: int = 0, **fields: Any) -> events.Device:
    return any_event.device(device_id=device_id, t_ns=T0_NS + at_s * S, at_us=us(at_s), **fields)


def turn(run_id: str, at_s: int, device_id: str, lease_id: str | None, tokens: int, **more: Any) -> events.Event:
    plain = {"trajectory_id": "t", "prompt_tokens": 10, "output_tokens": tokens, "policy_version": 1, "at_us": us(at_s)}
    return any_event.turn(run_id=run_id, device_id=device_id, lease_id=lease_id, **(plain | more))


def fleet_events() -> Iterator[events.Event]:
    yield events.Run(action="started", name="lab", at_us=us(0), tags_json='{"team": "infra", "serving_team": "chat"}')
    for run_id in RUNS[1:]:
        yield events.Run(
            action="started", name="grpo", run_id=run_id, at_us=us(1), tags_json=json.dumps({"team": f"team {run_id}"})
        )
    for device_id, pool in (("s0", "serving"), ("t0", "train")):
        yield joined(device_id, pool=pool)
    lease: dict[str, Any] = {"lease_id": "L", "device_id": "s0", "kv_budget_bytes": 1, "compute_share": 1.0}
    yield events.Lease(action="granted", expires_at_us=us(3600), at_us=us(600), rl_run_id="red", **lease)
    yield slice_(0, "s0", None, None, serving=500, idle=100)
    yield slice_(600, "s0", "red", "L", serving=200, rollout=700, sync=50, headroom=50)
    yield slice_(1600, "s0", "blue", "L", serving=100, rollout=600, activation=100, idle=200)
    yield slice_(2600, "s0", None, None, serving=600, idle=400)
    yield slice_(0, "t0", "red", None, train=1000, idle=800)
    yield slice_(1800, "t0", "blue", None, train=300, idle=1500)
    for run_id, at_s, tokens in (("red", 1500, 300), ("blue", 2500, 100)):
        yield turn(run_id, at_s, "s0", "L", tokens)
        yield any_event.verdict(
            run_id=run_id, trajectory_id="t", step=0, threshold=0.5, accepted=run_id == "red", at_us=us(at_s)
        )
        sent = {"wire_bytes": 10**9, "dense_bytes": 10**9, "policy_version": 1, "at_us": us(at_s)}
        yield any_event.sync(device_id="s0", lease_id="L", rl_run_id=run_id, **sent)
    yield events.Lease(action="released", expires_at_us=us(3600), at_us=us(2600), **lease)
    for run_id in RUNS[1:]:
        yield events.Run(action="ended", name="grpo", run_id=run_id, at_us=us(3000))
    yield events.Run(action="ended", name="lab", at_us=us(3600))
