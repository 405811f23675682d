from contextlib import closing
from pathlib import Path
from typing import Any

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing.query import rows, set_variables, snapshot
from tests.pricing.conftest import T0_NS, S, WriteLedger, us
from tests.pricing.marginal_cost.test_harm import WINDOW_S, WINDOWS, run

QUERIES = (
    "borrowing/lease_spans",
    "borrowing/lent_time",
    "borrowing/held_memory",
    "borrowing/holdout_windows",
    "borrowing/holdout_clusters",
    "borrowing/holdout_sums",
    "borrowing/window_pieces",
    "borrowing/bursts",
    "borrowing/load_and_demand",
    "borrowing/power_by_window",
    "borrowing/rated_amounts",
    "borrowing/turn_lengths",
    "borrowing/violations_by_load",
    "run/totals",
)


def device(action: Any, at_s: int, pool: Any, device_class: str = "h100-sxm") -> events.Device:
    return events.Device(
        action=action, device_id="s0", pool=pool, device_class=device_class, t_ns=T0_NS + at_s * S, at_us=us(at_s)
    )


def read(root: Path, end_s: int) -> dict[str, Any]:
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, Ledger(root), "run")
        period = {"run_id": "run", "period_end_ns": T0_NS + end_s * S, "horizon_ns": 10 * S}
        span = {"span_device": ["s0"], "span_from": [T0_NS + 100 * S], "span_to": [T0_NS + 1000 * S]}
        penalty = {"penalty_nano": [10**6], "curve_at": [[0.5, 1.0]], "curve_nano": [[0.0, 500_000.0]]}
        set_variables(connection, price_changes=[], **period, **span, **penalty)
        return {name: rows(connection, name) for name in QUERIES}


def test_what_a_device_lent_stays_lent_when_it_joins_another_pool(write_ledger: WriteLedger, tmp_path: Path) -> None:
    end_s = WINDOWS * WINDOW_S
    made = [
        *run(),
        *(
            events.Power(device_id="s0", t0_ns=t0_ns, t1_ns=t0_ns + 60 * S, power_mw=500_000, source="rapl")
            for t0_ns in range(T0_NS, T0_NS + 3000 * S, 60 * S)
        ),
    ]
    alone = read(write_ledger(made), end_s)
    later = [device("joined", end_s + 60, "rollout", "l4"), device("left", end_s + 120, "rollout", "l4")]
    changed = read(write_ledger([*made, *later], root=tmp_path / "changed"), end_s)
    assert {name for name in QUERIES if changed[name] != alone[name]} == set()
    with_rows = {name for name in QUERIES if alone[name]}
    assert {"borrowing/lent_time", "borrowing/rated_amounts", "borrowing/power_by_window"} <= with_rows


def test_what_a_dedicated_device_does_is_not_lent_when_it_joins_serving_later(write_ledger: WriteLedger) -> None:
    work: dict[str, Any] = {f"{bucket}_ns": 0 for bucket in events.BUCKETS} | {"rollout_ns": 50 * S, "idle_ns": 50 * S}
    made = [
        events.Run(action="started", name="moved", at_us=us(0)),
        device("joined", 0, "rollout"),
        events.DeviceSlice(device_id="s0", t0_ns=T0_NS, t1_ns=T0_NS + 100 * S, at_us=us(0), **work),
        device("joined", 100, "serving"),
        device("left", 200, "serving"),
    ]
    shown = read(write_ledger(made), 200)
    assert {name for name in ("borrowing/lent_time", "borrowing/load_and_demand") if shown[name]} == set()
