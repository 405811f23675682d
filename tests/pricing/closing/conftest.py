from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import strategies as st

from rose import events
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.charges.pricing import AMOUNTS, COLUMNS
from rose.pricing.closing import close as closing
from rose.pricing.closing.store import Posting
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing import any_event
from tests.pricing.price_books import price_book

S = 10**9
HOUR_NS = 3600 * S
DAY_NS = 24 * HOUR_NS
#: 2026-06-01, and the hour that `fleet` worked.
T0_NS = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * S
FIRST_HOUR = Period(T0_NS, T0_NS + HOUR_NS)
NEXT_DAY_US = (T0_NS + DAY_NS) // 1000

_NUMBERS = ("policy_version", *AMOUNTS, "first_seq", "last_seq")
SCHEMA: dict[str, Any] = {name: pl.Int64 if name in _NUMBERS else pl.String for name in COLUMNS}
SCHEMA["hour"] = pl.Datetime("us")
_PLAIN: dict[str, Any] = {"hour": datetime(2026, 6, 1), "run_id": "run", "fleet_run_id": "run", "provenance": "live"}
_PLAIN |= {"device_id": "s0", "hardware_id": "GPU-0", "pool": "serving", "device_class": "h100-sxm", "team": "chat"}
_PLAIN |= {"commitment": "1-year reserved", "kind": "capacity", "bucket": "serving", **dict.fromkeys(AMOUNTS, 0)}

#: Where the tests' ledgers cost what one can work out in the head: an H100 costs $3.60 an hour, $0.001 a second.
BOOK_TOML = price_book.toml(
    "by hand",
    price_book.device(
        "h100-sxm",
        "3.60",
        commitment="1-year reserved",
        valid_from=date(2026, 1, 1),
        source="contract 17",
        source_date=date(2026, 1, 1),
    ),
    ("transfer", {"route": "inter-region", "usd_per_gb": Decimal("0.02")}),
    price_book.electricity("0.1", pue="1.25"),
    price_book.LENDING,
    price_book.TOKENS,
)
BOOK = pricebook.parse(BOOK_TOML, "book.toml")
DEARER = pricebook.parse(BOOK_TOML.replace("3.60", "3.96").replace('version = "1"', 'version = "2"'), "dearer.toml")


def charges_of(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([_PLAIN | dict(row) for row in rows], schema=SCHEMA, orient="row")


_KEYS = {
    "hour": st.sampled_from([datetime(2026, 6, 1, hour) for hour in range(3)]),
    "device_id": st.sampled_from(["s0", "r0"]),
    "lease_id": st.none() | st.sampled_from(["L1", "L2"]),
    "bucket": st.sampled_from(["serving", "rollout", "idle"]),
    "team": st.sampled_from(["chat", "research", "unallocated"]),
    "policy_version": st.none() | st.integers(0, 2),
    "task": st.none() | st.just("maze"),
    "fate": st.none() | st.sampled_from(["accepted", "lost"]),
}
_AMOUNT = st.integers(0, 3) | st.integers(0, 10**15)


@st.composite
def frames_of_charges(draw: st.DrawFn, rows_max: int = 12) -> pl.DataFrame:
    keys = draw(st.lists(st.fixed_dictionaries(_KEYS), max_size=rows_max, unique_by=lambda row: tuple(row.values())))
    return charges_of(
        {**key, **{name: draw(_AMOUNT) for name in ("ns", "tokens", "cost_nano")}, "writer": "w", "first_seq": 0}
        for key in keys
    )


def us(after_s: float) -> int:
    return T0_NS // 1000 + int(after_s * 1_000_000)


def slice_(from_s: int, device_id: str = "s0", lease_id: str | None = None, **seconds: int) -> events.DeviceSlice:
    return any_event.slice_(T0_NS + from_s * S, device_id, lease_id=lease_id, unit_ns=S, **seconds)


def turn(trajectory_id: str, at_s: float, tokens: int, **fields: Any) -> events.Turn:
    plain = {"device_id": "s0", "lease_id": "L1", "group_id": "g", "step": 1, "policy_version": 3, "answer_tokens": 1}
    plain |= {"prompt_tokens": 30, "cached_tokens": 10, "output_tokens": tokens, "at_us": us(at_s)}
    return any_event.turn(trajectory_id=trajectory_id, **(plain | fields))


def judged(trajectory_id: str, at_s: float, *, accepted: bool, stale: bool = False) -> list[events.Event]:
    return [
        any_event.trajectory(trajectory_id=trajectory_id, answer_tokens=1, at_us=us(at_s)),
        any_event.verdict(trajectory_id=trajectory_id, accepted=accepted, stale=stale, at_us=us(at_s)),
    ]


def begun(tags: str | None = '{"team": "research", "serving_team": "chat"}') -> list[events.Event]:
    return [
        events.Run(action="started", name="by hand", at_us=us(0), tags_json=tags),
        any_event.device(t_ns=T0_NS, at_us=us(0)),
    ]


def ended(after_s: int) -> list[events.Event]:
    return [
        any_event.device(action="left", t_ns=T0_NS + after_s * S, at_us=us(after_s)),
        events.Run(action="ended", name="by hand", at_us=us(after_s)),
    ]


def fleet_events() -> list[events.Event]:
    """One serving device for an hour, $3.60: 1800 s serving, 900 s lent to rollouts, 600 s idle, 300 s unreported.

    300 tokens under lease L1: 200 accepted, 100 rejected, of which a preemption made 40 prompt tokens again.
    """
    return [
        *begun(),
        any_event.lease(lease_id="L1", device_id="s0", expires_at_us=us(3600), at_us=us(1800)),
        slice_(0, serving=1800),
        slice_(1800, lease_id="L1", rollout=900),
        slice_(2700, idle=600),
        any_event.sync(
            device_id="s0", lease_id="L1", wire_bytes=10**10, dense_bytes=10**10, policy_version=3, at_us=us(1800)
        ),
        any_event.power(t0_ns=T0_NS, t1_ns=T0_NS + 3300 * S, power_mw=600_000),
        turn("t0", 1900, 200),
        turn("t1", 2000, 60, outcome="preempted"),
        turn("t1", 2100, 40, attempt=1, prompt_tokens=70, cached_tokens=30),
        *judged("t0", 2500, accepted=True),
        *judged("t1", 2500, accepted=False),
        *ended(3600),
    ]


def write(
    root: Path,
    made: Iterable[events.Event],
    writer: str = "test",
    provenance: events.Provenance = "live",
    run_id: str = "run",
) -> Path:
    with LedgerWriter.open(root, writer, run_id, provenance) as ledger:
        for event in made:
            ledger.record(event, durable=False)
    return root


CLOSE_ID = "2026-06-01T00-live-1"
#: 550 Wh at $0.10 and PUE 1.25 are $0.06875.
BILL_NANO = 3_600_000_000 + 200_000_000 + 68_750_000


def close(
    root: Path, period: Period = FIRST_HOUR, book: PriceBook = BOOK, *, allow_unverified: bool = False, **options: Any
) -> Posting:
    ledger = Ledger(root, allow_unverified=allow_unverified)
    return closing.close(ledger, period, book, **({"now_us": NEXT_DAY_US, "by": "ann"} | options))


def late_slice() -> events.Event:
    """The 300 s that nobody reported, reported late: idle."""
    return slice_(3300, idle=300)


def weeks_events(days: int = 20) -> list[events.Event]:
    """Days, from 2026-06-01 on, of one serving device that works 1 h a day; on the 15th it works 3 h."""
    made: list[events.Event] = begun()
    for day in range(days):
        at_s = day * 86_400
        hours = 3 if day == 14 else 1
        made.append(slice_(at_s, lease_id="L1", rollout=hours * 3600))
        made.append(slice_(at_s + hours * 3600, idle=(24 - hours) * 3600))
        made.append(turn(f"t{day}", at_s + 60, 1_000_000))
        made += judged(f"t{day}", at_s + 90, accepted=True)
    return [*made, *ended(days * 86_400)]
