"""Ledgers of any shape, small and awkward, for the identities of the accounting.

They lie around a midnight at which every price changes. Slices cross hours, leave gaps and may have no length; leases
stay open; turns move between devices; verdicts contradict one another; events are sent twice, by other writers and with
other times; devices leave and return, in another pool or class too, and two runs may hold them at once; RL runs of
several teams may share a fleet. All of it arrives in up to three portions in any order. No device's nanosecond is
reported twice by one run.
"""

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st

from rose import events
from tests.pricing import any_event
from tests.pricing.price_books import price_book
from tests.pricing.recorded import HOUR_NS, PORTIONS, Made, Recorded

S = 10**9
MIDNIGHT_NS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * S
#: A ledger takes a while to write and to price, so one that fails is shown as it is, not made smaller for minutes.
AS_IT_IS = (Phase.explicit, Phase.reuse, Phase.generate)
TAGS = (None, "{}", '{"team": "research", "serving_team": "chat"}', '{"team": "x"}')
ROUTES = ("loopback", "inter-region", "internet")

_MARCH = date(2026, 3, 1)


def _power(usd_per_kwh: str, pue: str, **dates: date) -> price_book.Entry:
    return "electricity", {"usd_per_kwh": Decimal(usd_per_kwh), "pue": Decimal(pue), **dates}


def _sent(route: str, usd_per_gb: str, **dates: date) -> price_book.Entry:
    return "transfer", {"route": route, "usd_per_gb": Decimal(usd_per_gb), **dates}


def _tokens(prompt: str, output: str, **dates: date) -> price_book.Entry:
    return "tokens", {"input_usd_per_million": Decimal(prompt), "output_usd_per_million": Decimal(output), **dates}


#: Every price changes at that midnight, to figures that no count of nanoseconds divides evenly. A device of class
#: `rented` has its energy in its price, and one of class `owned` another price in the rollout pool.
BOOK = price_book.toml(
    "awkward",
    price_book.device("owned", "1.700000001", commitment="3 years", valid_to=_MARCH),
    price_book.device("owned", "2.35", commitment="3 years", valid_from=_MARCH),
    price_book.device("owned", "0.777777777777", pool="rollout", commitment="old", valid_from=_MARCH),
    price_book.device("rented", "3.3", commitment="on demand", energy_included=True),
    ("power", {"class": "owned", "idle_w": 267, "load_w": 680}),
    ("power", {"class": "rented", "idle_w": 80, "load_w": 593}),
    _power("0.1", "1.25", valid_to=_MARCH),
    _power("0.123456789", "1.1", valid_from=_MARCH),
    _sent("loopback", "0"),
    _sent("inter-region", "0.02", valid_to=_MARCH),
    _sent("inter-region", "0.0333333333", valid_from=_MARCH),
    _sent("internet", "0.09"),
    (
        "lending",
        {
            "idle_anyway": True,
            "scheduler_usd_per_lease_s": Decimal("0.000001"),
            "kv_recompute_usd_per_million_tokens": Decimal("0.3"),
            "violation_usd": Decimal("0.001"),
        },
    ),
    _tokens("1", "3", valid_to=_MARCH),
    _tokens("0.25", "1.333", valid_from=_MARCH),
)

_LENGTHS = st.sampled_from([0, 0, 0, 1, 2, 999_999_999, S, 7 * 60 * S + 3, HOUR_NS // 2]) | st.integers(0, 2 * HOUR_NS)
_TOKENS = st.sampled_from([0, 1, 3, 1000]) | st.integers(0, 10**6)


@st.composite
def ledgers(draw: st.DrawFn, portions: int = PORTIONS, punctual: bool = True, moving: bool = True) -> Made:
    """Ledgers of one or two runs, in `portions`.

    If `punctual`, all joins and leaves are known from the beginning, but for the last leave. Unless `moving`, devices
    join and leave once and are of one run without RL runs.
    """
    recorded: list[Recorded] = []
    for run_id in ["a", "b"][: draw(st.integers(1, 2))]:
        recorded += draw(_run(run_id, portions, punctual, moving))
    return Made(tuple(recorded))


@st.composite
def _run(draw: st.DrawFn, run_id: str, portions: int, punctual: bool, moving: bool) -> list[Recorded]:
    writers = [f"{run_id}{n}" for n in range(draw(st.integers(1, 2)))]
    made: list[events.Event] = []
    places: list[tuple[str, str | None, int]] = []
    tags = st.sampled_from(TAGS)
    fixed: list[events.Event] = [events.Run(action="started", name=run_id, at_us=1, tags_json=draw(tags))]
    shared = draw(st.sampled_from([0, 0, 2, 3] if moving else [0]))
    tenants: list[str | None] = [None, *(f"{run_id}-rl{n}" for n in range(shared))]
    for tenant in tenants[1:]:
        fixed.append(events.Run(action="started", name="rl", run_id=tenant, at_us=2, tags_json=draw(tags)))
    for n in range(draw(st.integers(1, 2))):
        at_least = 1 if (run_id, n) == ("a", 0) else 0
        (joined, *changes), rest, own = draw(_device(f"{run_id}-d{n}", at_least, moving, tenants))
        fixed += [joined, *(changes if punctual else [])]
        made += rest if punctual else [*changes, *rest]
        places += own
    for n in range(draw(st.integers(0, 3))):
        # RL runs give their trajectories the same names.
        made += draw(_trajectory(n // len(tenants), places, tenants[n % len(tenants) - 1]))
    for _ in range(draw(st.integers(0, 3))):
        made.append(draw(_loss_or_sync(places, draw(st.sampled_from(tenants)))))
    if draw(st.booleans()):
        after_ns = max(at_ns for _, _, at_ns in places) + draw(st.sampled_from([-HOUR_NS, 0, 1000, 40 * 60 * S]))
        made.append(events.Run(action="ended", name=run_id, at_us=after_ns // 1000))
    sent = [Recorded(0, writers[0], run_id, event) for event in fixed]
    for event in made:
        portion = draw(st.integers(0, portions - 1)) if portions > 1 else 0
        first = Recorded(portion, draw(st.sampled_from(writers)), run_id, event)
        if not draw(st.integers(0, 5)):
            # Sent again under the same id: later or in the same portion, by any writer, its clock a little off.
            first = dataclasses.replace(first, event=dataclasses.replace(event, event_id=f"c{len(sent)}"))
            again = dataclasses.replace(first.event, at_us=event.at_us + draw(st.sampled_from([0, 0, 1, -1])))
            later = draw(st.integers(portion, portions - 1))
            sent.append(Recorded(later, draw(st.sampled_from(writers)), run_id, again))
        sent.append(first)
    return sent


@st.composite
def _device(
    draw: st.DrawFn, device_id: str, at_least: int, moving: bool, tenants: list[str | None]
) -> tuple[list[events.Event], list[events.Event], list[tuple[str, str | None, int]]]:
    """Return joins and leaves of a device, its other events, and places: (device, lease, instant)."""
    pool: Any = draw(st.sampled_from(["serving", "serving", "rollout", "train"]))
    offset = draw(st.sampled_from([-HOUR_NS, -1, 0, 1, -S, -59 * 60 * S]) | st.integers(-2 * HOUR_NS, HOUR_NS))
    at_ns = MIDNIGHT_NS + offset
    device_class = draw(st.sampled_from(["owned", "owned", "rented"]))
    hardware = draw(st.sampled_from([None, "G0", "G0", "G1"])) if moving else None
    joined = events.Device(
        action="joined",
        device_id=device_id,
        t_ns=at_ns,
        pool=pool,
        at_us=at_ns // 1000,
        device_class=device_class,
        # Hardware is of one class at a time.
        hardware_id=hardware and f"{hardware}-{device_class}",
    )
    changes: list[events.Event] = [joined]
    made: list[events.Event] = []
    places: list[tuple[str, str | None, int]] = [(device_id, None, at_ns)]
    lease_id: str | None = None
    moved = False
    for n in range(draw(st.integers(at_least, 4))):
        at_ns += draw(st.sampled_from([0, 0, 0, 1, S, HOUR_NS]))
        before = lease_id
        how = draw(st.sampled_from(["", "", "", "again", "away", "away", "other"])) if n and moving else ""
        if how:
            if before is not None:
                made.append(_lease("released", before, device_id, at_ns))
            before = lease_id = None
            if how == "away" or (how == "other" and draw(st.booleans())):
                changes.append(dataclasses.replace(joined, action="left", t_ns=at_ns, at_us=at_ns // 1000))
                at_ns += draw(st.sampled_from([0, 1, S, 20 * 60 * S, 3 * HOUR_NS]))
            if how == "other" and not moved:
                moved = True
                # Once: then pool and class say which of the two it is.
                device_class = "rented" if joined.device_class == "owned" else "owned"
                by_class = {"device_class": device_class, "hardware_id": hardware and f"{hardware}-{device_class}"}
                by_pool = {"pool": "rollout" if pool == "serving" else "serving"}
                joined = dataclasses.replace(joined, **draw(st.sampled_from([by_class, by_pool])))
                pool = joined.pool
            joined = dataclasses.replace(joined, t_ns=at_ns, at_us=at_ns // 1000)
            changes.append(joined)
        if pool == "serving":
            lease_id = draw(st.sampled_from([lease_id, None, f"{device_id}-L{n}"]))
        if before is not None and lease_id != before:
            made.append(_lease(draw(st.sampled_from(["released", "preempted", "expired"])), before, device_id, at_ns))
        if lease_id is not None and lease_id != before:
            made.append(_lease("granted", lease_id, device_id, at_ns, draw(st.sampled_from(tenants))))
        times = [draw(_LENGTHS) for _ in events.BUCKETS[1:]]
        times.insert(0, draw(st.integers(0, HOUR_NS // 3)) if n else at_least)
        buckets: dict[str, Any] = {f"{bucket}_ns": ns for bucket, ns in zip(events.BUCKETS, times, strict=True)}
        end_ns = at_ns + sum(times)
        made.append(
            events.DeviceSlice(
                device_id=device_id,
                lease_id=lease_id,
                t0_ns=at_ns,
                t1_ns=end_ns,
                at_us=end_ns // 1000,
                rollout_run_id=draw(st.sampled_from(tenants)),
                train_run_id=draw(st.sampled_from(tenants)),
                **buckets,
            )
        )
        if draw(st.booleans()):
            power_mw = draw(st.none() | st.integers(0, 700_000))
            made.append(any_event.power(device_id=device_id, t0_ns=at_ns, t1_ns=end_ns, power_mw=power_mw))
        places.append((device_id, lease_id, at_ns + draw(st.integers(0, sum(times)))))
        at_ns = end_ns
    if draw(st.booleans()):
        left_ns = at_ns + draw(st.sampled_from([0, 1, HOUR_NS]))
        made.append(dataclasses.replace(joined, action="left", t_ns=left_ns, at_us=left_ns // 1000 + 1))
    return changes, made, places


def _lease(action: Any, lease_id: str, device_id: str, at_ns: int, rl_run_id: str | None = None) -> events.Lease:
    at = {"at_us": at_ns // 1000, "expires_at_us": at_ns // 1000 + 3_000_000}
    return any_event.lease(action=action, lease_id=lease_id, device_id=device_id, rl_run_id=rl_run_id, **at)


@st.composite
def _trajectory(
    draw: st.DrawFn, n: int, places: list[tuple[str, str | None, int]], run_id: str | None
) -> list[events.Event]:
    ids: dict[str, Any] = {"trajectory_id": f"t{n}", "group_id": f"g{n // 2}", "step": n // 2, "run_id": run_id}
    made: list[events.Event] = []
    made_tokens = 0
    for turn in range(draw(st.integers(1, 2))):
        attempts = draw(st.integers(1, 3))
        for attempt in range(attempts):
            device_id, lease_id, at_ns = draw(st.sampled_from(places))
            last = attempt == attempts - 1
            prompt, tokens = draw(_TOKENS), draw(_TOKENS)
            made_tokens += tokens
            made.append(
                any_event.turn(
                    **ids,
                    turn=turn,
                    attempt=attempt,
                    device_id=device_id,
                    lease_id=lease_id,
                    at_us=at_ns // 1000,
                    outcome=draw(st.sampled_from(["completed", "completed", "failed"])) if last else "preempted",
                    policy_version=draw(st.sampled_from([None, 1, 2])),
                    prompt_tokens=prompt,
                    cached_tokens=draw(st.integers(0, prompt)),
                    output_tokens=tokens,
                    answer_tokens=tokens // 4,
                )
            )
    end_us = max(event.at_us for event in made)
    if draw(st.integers(0, 3)):
        made.append(
            any_event.trajectory(
                **ids,
                task=draw(st.sampled_from(["maze", "sums"])),
                at_us=end_us,
                outcome=draw(st.sampled_from(["finished", "finished", "truncated", "lost"])),
                output_tokens=made_tokens,
                answer_tokens=made_tokens // 4,
            )
        )
    for later in range(draw(st.integers(0, 2))):
        accepted = draw(st.booleans())
        made.append(
            any_event.verdict(
                **ids,
                reward=float(accepted),
                threshold=0.5,
                accepted=accepted,
                stale=not draw(st.integers(0, 3)),
                correct=draw(st.sampled_from([None, True, False])),
                at_us=end_us + draw(st.integers(0, later)),
            )
        )
    return made


@st.composite
def _loss_or_sync(draw: st.DrawFn, places: list[tuple[str, str | None, int]], rl_run_id: str | None) -> events.Event:
    device_id, lease_id, at_ns = draw(st.sampled_from(places))
    version = draw(st.sampled_from([None, 1, 2]))
    if draw(st.booleans()):
        return events.Preemption(
            action="cut",
            reason="burst",
            device_id=device_id,
            lease_id=lease_id,
            policy_version=version,
            tokens_lost=draw(st.none() | _TOKENS),
            at_us=at_ns // 1000,
            rl_run_id=rl_run_id,
        )
    wire = draw(st.integers(0, 10**11))
    return any_event.sync(
        device_id=device_id,
        lease_id=lease_id,
        policy_version=version,
        ok=draw(st.booleans()),
        encoding="delta",
        wire_bytes=wire,
        dense_bytes=10**11,
        route=draw(st.sampled_from(ROUTES)),
        at_us=at_ns // 1000,
        rl_run_id=rl_run_id,
    )
