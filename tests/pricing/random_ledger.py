"""Ledgers of any shape, small and awkward: what the accounting identities are tried on.

Around a midnight at which every price changes. Slices cross hours and that midnight, leave gaps, hold buckets of no
time and have no length at all; leases stay open; turns move between devices; verdicts contradict one another; events
are sent twice under one client id, by other writers and with other times; devices leave and come back, in another pool
or class too, and are held by two runs at once; a run may be a fleet that RL runs of several teams share, each of which
has an engine for a while; and all of it arrives in up to three portions in any order. What no ledger may hold, a
nanosecond of a device that one run reports twice, is not among it.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from hypothesis import Phase
from hypothesis import strategies as st

from rose import events
from tests.pricing import any_event
from tests.pricing.recorded import HOUR_NS, PORTIONS, Made, Recorded

S = 10**9
MIDNIGHT_NS = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * S
#: A ledger takes a while to write and to price, so one that fails is shown as it is, not made smaller for minutes.
AS_IT_IS = (Phase.explicit, Phase.reuse, Phase.generate)
TAGS = (None, "{}", '{"team": "research", "serving_team": "chat"}', '{"team": "x"}')
ROUTES = ("loopback", "inter-region", "internet")

_SOURCED = 'source = "made up for the tests"\nsource_date = 2026-01-01\n'
#: Every price changes at that midnight, to figures that no count of nanoseconds divides evenly. A device of class
#: `rented` has its energy in its price, and one of class `owned` another price in the rollout pool.
BOOK = 'name = "awkward"\nversion = "1"\ncurrency = "USD"\n' + "".join(
    f"[[{table}]]\n{entry}\n{dates}{_SOURCED}"
    for table, *entries in (
        (
            "device",
            ('class = "owned"\nusd_per_hour = 1.700000001\ncommitment = "3 years"', "2020-01-01", "2026-03-01"),
            ('class = "owned"\nusd_per_hour = 2.35\ncommitment = "3 years"', "2026-03-01", None),
            (
                'class = "owned"\npool = "rollout"\nusd_per_hour = 0.777777777777\ncommitment = "old"',
                "2026-03-01",
                None,
            ),
            (
                'class = "rented"\nusd_per_hour = 3.3\ncommitment = "on demand"\nenergy_included = true',
                "2020-01-01",
                None,
            ),
        ),
        (
            "power",
            ('class = "owned"\nidle_w = 267\nload_w = 680', None, None),
            ('class = "rented"\nidle_w = 80\nload_w = 593', None, None),
        ),
        (
            "electricity",
            ("usd_per_kwh = 0.1\npue = 1.25", None, "2026-03-01"),
            ("usd_per_kwh = 0.123456789\npue = 1.1", "2026-03-01", None),
        ),
        (
            "transfer",
            ('route = "loopback"\nusd_per_gb = 0', None, None),
            ('route = "inter-region"\nusd_per_gb = 0.02', None, "2026-03-01"),
            ('route = "inter-region"\nusd_per_gb = 0.0333333333', "2026-03-01", None),
            ('route = "internet"\nusd_per_gb = 0.09', None, None),
        ),
        (
            "lending",
            (
                "idle_anyway = true\nscheduler_usd_per_lease_s = 0.000001\n"
                "kv_recompute_usd_per_million_tokens = 0.3\nviolation_usd = 0.001",
                None,
                None,
            ),
        ),
        (
            "tokens",
            ("input_usd_per_million = 1\noutput_usd_per_million = 3", None, "2026-03-01"),
            ("input_usd_per_million = 0.25\noutput_usd_per_million = 1.333", "2026-03-01", None),
        ),
    )
    for entry, valid_from, valid_to in entries
    for dates in [
        (f"valid_from = {valid_from}\n" if valid_from else "") + (f"valid_to = {valid_to}\n" if valid_to else "")
    ]
)

_LENGTHS = st.sampled_from([0, 0, 0, 1, 2, 999_999_999, S, 7 * 60 * S + 3, HOUR_NS // 2]) | st.integers(0, 2 * HOUR_NS)
_TOKENS = st.sampled_from([0, 1, 3, 1000]) | st.integers(0, 10**6)


@st.composite
def ledgers(draw: st.DrawFn, portions: int = PORTIONS, punctual: bool = True, moving: bool = True) -> Made:
    """Ledgers of one or two runs, everything in one portion or spread over several.

    If `punctual`, it is known from the beginning when devices come and go, but for the last time that they leave.
    Unless `moving`, they come and go once, stay what they are, and are of one run alone, which no RL runs share.
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
    fixed: list[events.Event] = [
        events.Run(
            action="started",
            name=run_id,
            at_us=1,
            tags_json=draw(st.sampled_from(TAGS)),
        )
    ]
    tenants: list[str | None] = [
        None,
        *(f"{run_id}-rl{n}" for n in range(draw(st.sampled_from([0, 0, 2, 3] if moving else [0])))),
    ]
    fixed += [
        events.Run(action="started", name="rl", run_id=tenant, at_us=2, tags_json=draw(st.sampled_from(TAGS)))
        for tenant in tenants[1:]
    ]
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
            off_us = draw(st.sampled_from([0, 0, 1, -1]))
            again = dataclasses.replace(first.event, at_us=event.at_us + off_us)
            sent.append(
                Recorded(draw(st.integers(portion, portions - 1)), draw(st.sampled_from(writers)), run_id, again)
            )
        sent.append(first)
    return sent


@st.composite
def _device(
    draw: st.DrawFn, device_id: str, at_least: int, moving: bool, tenants: list[str | None]
) -> tuple[list[events.Event], list[events.Event], list[tuple[str, str | None, int]]]:
    """A device as it came and went, what else it reports, and places on it: (device, lease, instant)."""
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
                other: dict[str, Any] = draw(
                    st.sampled_from(
                        [
                            {"device_class": device_class, "hardware_id": hardware and f"{hardware}-{device_class}"},
                            {"pool": "rollout" if pool == "serving" else "serving"},
                        ]
                    )
                )
                joined = dataclasses.replace(joined, **other)
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
            source = events.NOT_MEASURED if power_mw is None else "rapl"
            made.append(
                events.Power(
                    device_id=device_id,
                    t0_ns=at_ns,
                    t1_ns=end_ns,
                    power_mw=power_mw,
                    source=source,
                    at_us=end_ns // 1000,
                )
            )
        places.append((device_id, lease_id, at_ns + draw(st.integers(0, sum(times)))))
        at_ns = end_ns
    if draw(st.booleans()):
        left_ns = at_ns + draw(st.sampled_from([0, 1, HOUR_NS]))
        made.append(dataclasses.replace(joined, action="left", t_ns=left_ns, at_us=left_ns // 1000 + 1))
    return changes, made, places


def _lease(action: Any, lease_id: str, device_id: str, at_ns: int, rl_run_id: str | None = None) -> events.Lease:
    return events.Lease(
        action=action,
        lease_id=lease_id,
        device_id=device_id,
        kv_budget_bytes=1,
        compute_share=0.5,
        expires_at_us=at_ns // 1000 + 3_000_000,
        at_us=at_ns // 1000,
        rl_run_id=rl_run_id,
    )


@st.composite
def _trajectory(
    draw: st.DrawFn, n: int, places: list[tuple[str, str | None, int]], run_id: str | None
) -> list[events.Event]:
    """Turns of one to three attempts wherever there is a place, how it ended if it did, and up to two verdicts."""
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
            events.Verdict(
                **ids,
                verifier="v",
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
