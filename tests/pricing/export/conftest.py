from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.closing import close as closing
from rose.pricing.closing.bill import Bill, bill, of_close
from rose.pricing.closing.close import restate
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.period import Period, nanoseconds
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from tests.pricing import any_event
from tests.pricing.closing.conftest import write
from tests.pricing.identities.random_ledger import BOOK

S = 10**9
HOUR_NS = 3600 * S
#: Two hours before a midnight at which every price of the book changes.
START_NS = int(datetime(2026, 2, 28, 22, tzinfo=UTC).timestamp()) * S
HOURS = 4
PERIOD = Period(START_NS, START_NS + HOURS * HOUR_NS)
TAGS = '{"team": "research", "serving_team": "chat", "project": "a \\"maze\\", <b>"}'
#: Of a run whose name a spreadsheet would take for a formula and a page for markup.
NAME = '=1+1 <script>alert("run")</script>'
RUN = "busy"


@pytest.fixture(scope="session")
def book() -> PriceBook:
    return pricebook.parse(BOOK, "awkward.toml")


@pytest.fixture(scope="session")
def dear_book() -> PriceBook:
    text = BOOK.replace("usd_per_hour = 2.35", "usd_per_hour = 2.585").replace('version = "1"', 'version = "2"')
    return pricebook.parse(text, "dearer.toml")


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with every bucket, transfers, metered energy, waste of several causes, and time nobody accounts for."""
    return record(tmp_path_factory.mktemp("busy") / "ledger", "live")


@pytest.fixture(scope="session")
def period_bill(busy: Path, book: PriceBook) -> Bill:
    return bill(Ledger(busy), PERIOD, book)


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory, book: PriceBook, dear_book: PriceBook) -> tuple[Path, str]:
    """A ledger with a close that was restated with other prices, and the name of the close."""
    root = record(tmp_path_factory.mktemp("closed") / "ledger", "live")
    made = closing.close(Ledger(root), PERIOD, book, by="lead")
    restate(Ledger(root), made.close_id, "a new contract", dear_book, by="lead")
    return root, made.close_id


@pytest.fixture(scope="session")
def close_bill(closed: tuple[Path, str]) -> Bill:
    root, close_id = closed
    return of_close(Ledger(root), close_id)


def whole_bill(root: Path, book: PriceBook) -> Bill:
    hours = [nanoseconds(hour) for hour in charges.price(Ledger(root), book).frame["hour"].unique()]
    return bill(Ledger(root), Period(min(hours), max(hours) + NS_PER_HOUR), book)


def record(root: Path, provenance: events.Provenance) -> Path:
    made: list[events.Event] = [events.Run(action="started", name=NAME, at_us=us(0), tags_json=TAGS)]
    devices = (("s0", "serving", "owned"), ("r0", "rollout", "owned"), ("s1", "serving", "rented"))
    for device_id, pool, device_class in devices:
        fields: dict[str, Any] = {"device_id": device_id, "pool": pool, "device_class": device_class}
        made.append(events.Device(action="joined", t_ns=START_NS, at_us=us(0), **fields))
        made.append(events.Device(action="left", t_ns=PERIOD.to_ns, at_us=us(HOURS * 3600), **fields))
    for hour in range(HOURS):
        made += [
            *slice_("s0", hour, f"L{hour}", serving=1000, rollout=700, sync=17, activation=3, headroom=100),
            *slice_("s0", hour, None, first_s=1820, serving=900, idle=601),
            *slice_("s1", hour, None, serving=1501, idle=2099),
            *slice_("r0", hour, None, rollout=2000, train=1501, idle=99),
        ]
        lease = {"lease_id": f"L{hour}", "device_id": "s0", "expires_at_us": us(hour * 3600 + 1820)}
        for action, after_s in (("granted", 0), ("preempted" if hour % 2 else "released", 1820)):
            made.append(any_event.lease(action=action, at_us=us(hour * 3600 + after_s), **lease))
        for device_id in ("s0", "s1"):
            t0_ns = START_NS + hour * HOUR_NS
            made.append(any_event.power(device_id=device_id, t0_ns=t0_ns, t1_ns=t0_ns + HOUR_NS, power_mw=333_333))
        for device_id, route in (("s0", "inter-region"), ("r0", "loopback")):
            sizes = {"wire_bytes": 123_456_789 + hour, "dense_bytes": 10**9, "policy_version": hour}
            at_us = us(hour * 3600 + 5)
            made.append(any_event.sync(device_id=device_id, encoding="delta", route=route, at_us=at_us, **sizes))
        for n, (device_id, lease_id) in enumerate((("s0", f"L{hour}"), ("r0", None), ("s0", f"L{hour}"))):
            made += trajectory(f"t{hour}-{n}", hour, device_id, lease_id, accepted=n == 0, stale=n == 1)
    made.append(events.Run(action="ended", name=NAME, at_us=us(HOURS * 3600)))
    return write(root, made, provenance=provenance, run_id=RUN)


def us(after_s: float) -> int:
    return START_NS // 1000 + round(after_s * 1_000_000)


def slice_(device_id: str, hour: int, lease_id: str | None, *, first_s: int = 0, **seconds: int) -> list[events.Event]:
    t0_ns = START_NS + hour * HOUR_NS + first_s * S
    return [any_event.slice_(t0_ns, device_id, lease_id=lease_id, unit_ns=S, short_ns=7, **seconds)]


def trajectory(
    name: str, hour: int, device_id: str, lease_id: str | None, *, accepted: bool, stale: bool
) -> list[events.Event]:
    ids: dict[str, Any] = {"trajectory_id": name, "group_id": f"g{hour}", "step": hour}
    tokens = {"prompt_tokens": 10, "output_tokens": 1001, "answer_tokens": 100, "policy_version": hour}
    at_us = us(hour * 3600 + 100)
    return [
        any_event.turn(**ids, **tokens, device_id=device_id, lease_id=lease_id, at_us=at_us),
        any_event.trajectory(**ids, **tokens, at_us=at_us + 1),
        any_event.verdict(**ids, reward=float(accepted), accepted=accepted, stale=stale, at_us=at_us + 2),
    ]
