import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.writer import LedgerWriter

T0_NS = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * 10**9
S = 10**9
STEPS, STEP_S = 8, 30
APP = Path(__file__).parents[2] / "dashboard" / "app.py"
TAGS = {"team": "research", "serving_team": "chat"}
#: Text that would load a page of somebody else's, look like ours, or move the cursor.
HOSTILE = "![x](http://evil.example/p.png) $a$ <b>=1+1 \u202egnp\u200f\x1b[2J"


def us(after_s: float) -> int:
    return T0_NS // 1000 + round(after_s * 1_000_000)


def write(
    root: Path,
    rows: Iterable[events.Event],
    *,
    run_id: str = "run",
    writer: str = "test",
    provenance: events.Provenance = "simulated",
) -> Path:
    with LedgerWriter.open(root, writer, run_id, provenance) as ledger:
        for event in rows:
            ledger.record(event, durable=False)
    return root


def started(name: str = "little fleet", after_s: float = 0, **config: Any) -> events.Run:
    trace: Any = {"trace": "bursty", "trace_keep_share": 0.5, "trace_length_scale": 0.25}
    trace |= {"trace_output_length_scale": 0.5, "trace_time_scale": 2.0}
    texts: Any = {"config_json": json.dumps(config), "tags_json": json.dumps(TAGS)}
    return events.Run(action="started", name=name, at_us=us(after_s), **trace, **texts)


def devices(action: Any, after_s: float = 0) -> list[events.Event]:
    pools: Any = (("s0", "serving"), ("r0", "rollout"), ("t0", "train"))
    at: Any = {"action": action, "t_ns": T0_NS + round(after_s * S), "at_us": us(after_s)}
    return [events.Device(device_id=name, pool=pool, device_class="h100-sxm", **at) for name, pool in pools]


joined = functools.partial(devices, "joined")
left = functools.partial(devices, "left")


def slices(step: int) -> list[events.Event]:
    rows: list[events.Event] = []
    for n in range(STEP_S):
        t0_ns = T0_NS + (step * STEP_S + n) * S
        busy = (100 + 20 * (n * (STEP_S - n) // 10)) * S // 1000
        rollout = (S - busy) * 2 // 3 if n >= 3 else 0
        parts = {
            "s0": {"serving": busy, "rollout": rollout, "headroom": S // 20, "activation": S // 50 if n == 3 else 0},
            "r0": {"rollout": S * 9 // 10 if n < 24 else 0, "sync": S // 2 if n == 28 else 0},
            "t0": {"train": S * 4 // 5 if n >= 24 else 0},
        }
        for device_id, spent in parts.items():
            idle = S - sum(spent.values())
            ns: Any = {f"{bucket}_ns": spent.get(bucket, 0) for bucket in events.BUCKETS} | {"idle_ns": idle}
            lease_id = f"L{step}" if device_id == "s0" and 3 <= n < 26 else None
            at: Any = {"lease_id": lease_id, "t0_ns": t0_ns, "t1_ns": t0_ns + S, "at_us": t0_ns // 1000 + 10**6}
            rows.append(events.DeviceSlice(device_id=device_id, **at, **ns))
    return rows


def leases(step: int) -> list[events.Event]:
    at_s, lease_id = step * STEP_S, f"L{step}"
    closing: Any = ("released", "preempted", "expired")[step % 3]

    ids: Any = {"lease_id": lease_id, "device_id": "s0", "step": step}
    cut = {"kv_budget_bytes_before": 10**9, "kv_budget_bytes_after": 5 * 10**8}
    versions: Any = {"device_id": "s0", "engine_id": "s0/rollout", "base_version": step, "policy_version": step + 1}
    sent: Any = {"encoding": "delta", "wire_bytes": 2_000_000, "dense_bytes": 60_000_000, "total_ns": 400_000_000}
    sent |= {"pause_ns": 20_000_000, "source": "relay", "route": "inter-region", "step": step}
    engine: Any = {"engine_id": "s0/rollout", "kv_budget_bytes": 10**9, "compute_share": 1.0}

    def change(action: Any, after_s: float) -> events.Lease:
        return events.Lease(action=action, expires_at_us=us(after_s + 10), at_us=us(after_s), **engine, **ids)

    def preemption(action: Any, after_s: float, **fields: Any) -> events.Preemption:
        return events.Preemption(action=action, reason="serving has work", at_us=us(after_s), **ids, **fields)

    return [
        change("granted", at_s + 3),
        change("renewed", at_s + 12),
        *(preemption("yield", at_s + 5 + n, duration_ns=4_000_000) for n in range(0, 18, 3)),
        preemption("cut", at_s + 16, requests=1, tokens_kept=40, tokens_lost=0, **cut),
        *(preemption("revoke", at_s + 26, requests=1, tokens_kept=10, tokens_lost=5) for _ in (1,) if step % 3 == 1),
        change(closing, at_s + 26),
        events.Sync(ok=step != 5, at_us=us(at_s + 29), **versions, **sent),
    ]


def rollouts(step: int) -> list[events.Event]:
    rows: list[events.Event] = []
    for n in range(8):
        name, group = f"{step}-{n}", f"g{step}-{n // 4}"
        tokens, accepted = 400 + 10 * n, n < 1 + step * 6 // STEPS
        ids: Any = {"trajectory_id": name, "group_id": group, "step": step, "at_us": us(step * STEP_S + 10 + n)}
        spent: Any = {"prompt_tokens": 50, "output_tokens": tokens, "answer_tokens": tokens // 4, "duration_ns": S}
        where: Any = {"device_id": "s0", "placement": "lease"} if n % 2 else {"device_id": "r0", "placement": "prefix"}
        first: Any = {"turn": 0, "attempt": 0, "outcome": "completed", "cached_tokens": 0, "queue_ns": 0}
        ended: Any = {"task": "lake", "outcome": "finished", "turns": 1, "staleness": n % 2}
        judged: Any = {"verifier": "lake", "reward": float(accepted), "threshold": 1.0}
        rows += [
            events.Turn(policy_version=step, **ids, **spent, **where, **first),
            events.Trajectory(policy_version=step, **ids, **spent, **ended),
            events.Verdict(accepted=accepted, correct=accepted, **ids, **judged),
        ]
    counts: Any = {"groups": 2, "trajectories": 8, "trajectories_accepted": 1 + step * 6 // STEPS}
    trained: Any = {"tokens_trained": 3000, "reward_mean": 0.5, "loss": 0.1}
    trained |= {"entropy": 1.0, "kl": 0.0, "grad_norm": 1.0}
    times: Any = {"rollout_ns": 24 * S, "train_ns": 5 * S, "sync_ns": S // 2, "total_ns": 30 * S}
    at: Any = {"step": step, "policy_version": step + 1, "at_us": us(step * STEP_S + 29)}
    return [*rows, events.Step(**at, **counts, **trained, **times)]


def requests(step: int) -> list[events.Event]:
    rows: list[events.Event] = []
    for n in range(STEP_S):
        lent = 3 <= n < 26
        late = lent and n == 20
        ttft_ms = 2600 if late else 120 + 5 * (n % 7) + (15 if lent else 0)
        ids: Any = {"request_id": f"q{step}-{n}", "device_id": "s0", "lease_id": f"L{step}" if lent else None}
        tokens: Any = {"prompt_tokens": 100, "output_tokens": 20}
        times: Any = {"ttft_ns": ttft_ms * 1_000_000, "tpot_mean_ns": (40 + n % 5) * 1_000_000}
        times |= {"tpot_max_ns": 60_000_000, "e2e_ns": 3 * S if late else S, "send_delay_ns": 0}
        budgets: Any = {"ttft_budget_ns": 2 * S, "tpot_budget_ns": 250_000_000, "at_us": us(step * STEP_S + n + 1)}
        rows.append(events.Request(outcome="completed", **ids, **tokens, **times, **budgets))
    return rows


def power(step: int) -> list[events.Event]:
    rows: list[events.Event] = []
    for n in range(0, STEP_S, 10):
        t0_ns = T0_NS + (step * STEP_S + n) * S
        at: Any = {"t0_ns": t0_ns, "t1_ns": t0_ns + 10 * S, "at_us": t0_ns // 1000 + 10**7}
        rows.append(events.Power(device_id="s0", power_mw=400_000 + 10_000 * n, source="rapl", **at))
    return rows


def a_step(step: int) -> list[events.Event]:
    return [*slices(step), *leases(step), *rollouts(step), *requests(step), *power(step)]


def a_run(name: str = "little fleet") -> list[events.Event]:
    """A run in which s0 was there for a second without a slice."""
    rows: list[events.Event] = [started(name), *joined()]
    for step in range(STEPS):
        rows += a_step(step)
    end_s = STEPS * STEP_S + 1
    return [*rows, *left(end_s), events.Run(action="ended", name=name, reason="last step", at_us=us(end_s))]


def lease_with_time(after_s: float, seconds: int) -> list[events.Event]:
    lease: Any = {"lease_id": "L", "device_id": "s0", "at_us": us(after_s)}
    t0_ns, zeros = 1000 * us(after_s), dict.fromkeys((f"{bucket}_ns" for bucket in events.BUCKETS), 0)
    spent: Any = zeros | {"rollout_ns": seconds * S}
    return [
        events.Lease(action="granted", kv_budget_bytes=1, compute_share=1.0, expires_at_us=us(60), **lease),
        events.DeviceSlice(t0_ns=t0_ns, t1_ns=t0_ns + seconds * S, **lease, **spent),
    ]


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ended") / "ledger", a_run())


def hostile(event: events.Event) -> events.Event:
    tags = json.dumps({"team": HOSTILE, "serving_team": HOSTILE, "p": HOSTILE})
    texts = {"tags_json": tags, "name": HOSTILE, "trace": HOSTILE, "reason": HOSTILE, "task": HOSTILE}
    changes = {name: text for name, text in texts.items() if isinstance(getattr(event, name, None), str)}
    ids = {name: f"{HOSTILE}{value}" for name in ("device_id", "engine_id") if (value := getattr(event, name, None))}
    return dataclasses.replace(event, **changes, **ids)


@pytest.fixture(scope="session")
def tampered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with hostile text in every field, and a short run ten days earlier."""
    root = write(tmp_path_factory.mktemp("hostile") / "ledger", map(hostile, a_run()), run_id=HOSTILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "T0_NS", T0_NS - 10 * 86_400 * S)
        earlier = [started("earlier"), *joined(), *slices(0), *left(30)]
    return write(root, earlier, writer="earlier", run_id="earlier")


@contextmanager
def live_writer(root: Path, run_id: str = "run") -> Iterator[Callable[[list[events.Event]], None]]:
    with LedgerWriter.open(root, "live", run_id, "live", flush_interval_s=0.05) as ledger:

        def record(rows: list[events.Event]) -> None:
            for event in rows:
                ledger.record(event, durable=False)
            ledger.flush()

        yield record


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Any:
    return request.config.pluginmanager.get_plugin(__file__)


OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def open_page() -> Iterator[OpenPage]:
    """Run a page as a browser would. Pages share what they have read."""
    from streamlit.components.v2 import manifest_scanner
    from streamlit.testing.v1 import AppTest

    components = manifest_scanner.scan_component_manifests()

    def open_(ledger: Path, page: str, **link: str) -> AppTest:
        os.environ["ROSE_LEDGER"] = str(ledger)
        app = AppTest.from_file(APP, default_timeout=240)
        app.query_params.update(link)
        app = (app if page == "overview" else app.switch_page(f"screens/{page}.py")).run()
        assert not app.exception
        return app

    with pytest.MonkeyPatch.context() as patch:
        # Each page that is opened here looks for them anew, which takes longer than the page.
        patch.setattr(manifest_scanner, "scan_component_manifests", lambda: components)
        patch.setenv("ROSE_LEDGER", "")
        yield open_


@pytest.fixture(scope="session")
def drawn(open_page: OpenPage) -> OpenPage:
    """A page drawn once for all tests. Serving and fleet have no price book."""

    @functools.cache
    def draw(ledger: Path, page: str, **link: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if page in ("serving", "fleet"):
                patch.delenv("ROSE_PRICE_BOOK")
            return open_page(ledger, page, **link)

    return draw


def values(app: Any) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def unescaped(text: str) -> str:
    return re.sub(r"\\([^\w\s]|_)", r"\1", text).replace("\u2060", "")


def page_text(app: Any) -> str:
    kinds = ("markdown", "caption", "info", "warning", "error", "success", "header", "subheader")
    return "\n".join(unescaped(str(element.value)) for kind in kinds for element in getattr(app, kind))


def tables(app: Any) -> list[Any]:
    """The tables as a reader sees them: first those that sort, then those that wrap."""
    texts = [static.value.rename(columns=unescaped).map(unescaped) for static in app.table]
    return [*(frame.value for frame in app.dataframe), *texts]


def table(app: Any, *columns: str) -> Any:
    return next(frame for frame in tables(app) if set(columns) <= set(frame))


def choose(app: Any, label: str, value: Any) -> Any:
    (widget,) = [one for kind in ("selectbox", "radio") for one in getattr(app.main, kind) if one.label == label]
    app = widget.set_value(value).run()
    assert not app.exception
    return app
