from collections.abc import Callable
from typing import Any, TypeVar

from rose import events

E = TypeVar("E", bound=events.Event)


def _maker(kind: type[E], **plain: Any) -> Callable[..., E]:
    return lambda **fields: kind(**(plain | fields))


device = _maker(events.Device, action="joined", device_id="s0", pool="serving", device_class="h100-sxm")
turn = _maker(
    events.Turn,
    **{"placement": "lease", "outcome": "completed", "queue_ns": 0, "duration_ns": 1, "turn": 0, "attempt": 0},
    **{"prompt_tokens": 1, "cached_tokens": 0, "output_tokens": 1},
)
sync = _maker(
    events.Sync,
    **{"ok": True, "encoding": "dense", "base_version": None, "source": "relay", "route": "inter-region"},
    **{"total_ns": 1, "wire_bytes": 1, "dense_bytes": 1},
)
request = _maker(
    events.Request,
    **{"outcome": "completed", "prompt_tokens": 1, "output_tokens": 1, "send_delay_ns": 0, "ttft_ns": 1},
    **{"e2e_ns": 1000, "tpot_mean_ns": None, "tpot_max_ns": None, "ttft_budget_ns": 1, "tpot_budget_ns": 1},
)
verdict = _maker(events.Verdict, verifier="v", threshold=1.0, group_id="g", step=1, reward=1.0, accepted=False)
trajectory = _maker(
    events.Trajectory,
    **{"task": "maze", "group_id": "g", "step": 1, "outcome": "finished", "turns": 1, "staleness": 0},
    **{"duration_ns": 1, "prompt_tokens": 1, "output_tokens": 1},
)
lease = _maker(events.Lease, action="granted", kv_budget_bytes=1, compute_share=1.0)
engine = _maker(events.Engine, action="started", role="rollout", model="m")
scale_down = _maker(events.ScaleDown, device_class="h100-sxm", decision="kept", decided_by="Kim")


def slice_(
    t0_ns: int,
    device_id: str = "s0",
    *,
    lease_id: str | None = None,
    unit_ns: int = 1,
    short_ns: int = 0,
    rl_run_id: str | None = None,
    **buckets: float,
) -> events.DeviceSlice:
    """Return a slice that lasts as long as its buckets, in `unit_ns`; the last one is `short_ns` short.

    `rl_run_id` is the run of its rollouts and of its training.
    """
    times: dict[str, Any] = {f"{name}_ns": round(buckets.get(name, 0) * unit_ns) for name in events.BUCKETS}
    if short_ns:
        times[f"{list(buckets)[-1]}_ns"] -= short_ns
    times |= {"t0_ns": t0_ns, "t1_ns": t0_ns + sum(times.values()), "at_us": t0_ns // 1000}
    whose = {"rollout_run_id": rl_run_id, "train_run_id": rl_run_id}
    return events.DeviceSlice(device_id=device_id, lease_id=lease_id, **times, **whose)


def power(*, t0_ns: int, t1_ns: int, power_mw: int | None, device_id: str = "s0") -> events.Power:
    source = events.NOT_MEASURED if power_mw is None else "rapl"
    return events.Power(
        device_id=device_id, t0_ns=t0_ns, t1_ns=t1_ns, power_mw=power_mw, source=source, at_us=t1_ns // 1000
    )
