"""What the identities of the accounting are tried on, and what must come out: from the events alone, in plain Python.

Ledgers are written for real. `IDENTITY_EXAMPLES=50` tries more of them.
"""

import dataclasses
import functools
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.answers import run_report
from rose.pricing.charges import Charges
from rose.pricing.charges.state import cut
from rose.pricing.closing import store
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.table import Section
from tests.long_form import usual
from tests.pricing import any_event
from tests.pricing.identities.random_ledger import BOOK as BOOK_TEXT
from tests.pricing.identities.random_ledger import ledgers
from tests.pricing.recorded import HOUR_NS, Made, Recorded

BOOK = pricebook.parse(BOOK_TEXT, "awkward.toml")
EXAMPLES = int(os.environ.get("IDENTITY_EXAMPLES", usual(2, long=8)))
#: One for all tests of a session, another in the next one.
SEED = random.randrange(2**32)
#: A ledger takes a while to write, so one that fails is shown as it is. Take `phases` out to have it made smaller.
QUIET = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate]
)
#: Where pricing keeps its sums of a ledger that is worth it; a file there makes it keep those of any.
KEPT = "pricing.duckdb"

Key = tuple[Any, ...]


def on_any_ledger(test: Callable[..., None]) -> Callable[..., None]:
    return seed(SEED)(QUIET(given(made=ledgers(portions=1))(test)))


@functools.cache
def folder_of_ledgers() -> Path:
    return Path(tempfile.mkdtemp(prefix="identities-"))


@functools.cache
def root_of(made: Made) -> Path:
    root = Path(tempfile.mkdtemp(dir=folder_of_ledgers())) / "ledger"
    made.write(root)
    return root


@functools.cache
def priced(made: Made) -> Charges:
    return charges.price(Ledger(root_of(made)), BOOK)


def runs_reported(made: Made) -> dict[str, str]:
    """The runs that reports are made of, which take a while: each fleet's, and an RL run of each."""
    chosen = {(fleet, run_id == fleet): run_id for run_id, fleet in made.fleets().items()}
    return {run_id: fleet for (fleet, _), run_id in chosen.items()}


@functools.cache
def reported(made: Made, run_id: str) -> Section | None:
    if not priced(made).frame.filter(pl.any_horizontal(pl.col("run_id", "fleet_run_id") == run_id))["ns"].sum():
        with pytest.raises(PricingError, match=run_id):
            run_report.build(Ledger(root_of(made)), run_id, BOOK)
        return None
    return run_report.build(Ledger(root_of(made)), run_id, BOOK).section


def content(frame: pl.DataFrame) -> bytes:
    return store.parquet(frame)


def hour_of(when: datetime) -> int:
    return int(when.replace(tzinfo=UTC).timestamp()) // 3600


def hours(t0_ns: int, t1_ns: int) -> Iterable[tuple[int, int]]:
    for hour in range(t0_ns // HOUR_NS, -(-t1_ns // HOUR_NS)):
        if inside := min(t1_ns, (hour + 1) * HOUR_NS) - max(t0_ns, hour * HOUR_NS):
            yield hour, inside


def summed(frame: pl.DataFrame, by: list[str], amount: str) -> Counter[Key]:
    """Sums of an amount by some columns, hours as their number, without what is 0."""
    sums: Counter[Key] = Counter()
    for *key, value in frame.select(*by, amount).iter_rows():
        sums[tuple(hour_of(part) if isinstance(part, datetime) else part for part in key)] += value
    return +sums


def half_even(amount: Fraction) -> int:
    whole, rest = divmod(amount.numerator, amount.denominator)
    twice = 2 * rest - amount.denominator
    return whole + (twice > 0 or (twice == 0 and whole % 2 == 1))


#: Buckets of the RL run whose rollouts they are, and those that the device's team pays.
ROLLOUT = ("rollout", "sync", "activation", "headroom")
OF_DEVICE = ("serving", "headroom", "idle", "unaccounted", "energy")
DEVICE = ["fleet_run_id", "device_id", "device_class", "pool", "hour"]


def owner(slice_: events.DeviceSlice, bucket: str, run_id: str) -> str:
    """Whose charge a bucket of a slice is; `run_id` is the run that the slice is of."""
    named = {"train": slice_.train_run_id} | dict.fromkeys(ROLLOUT, slice_.rollout_run_id)
    return named.get(bucket) or run_id


def cut_slices(made: Made) -> Iterator[tuple[str, int, str, events.DeviceSlice, int, int, dict[str, int]]]:
    for writer, seq, run_id, slice_ in made.facts(events.DeviceSlice):
        if slice_.t1_ns > slice_.t0_ns:
            spell = made.spell(run_id, slice_.device_id, slice_.t0_ns)
            for hour, part in cut(dataclasses.asdict(slice_)):
                yield writer, seq, run_id, slice_, spell, hour, part


def prices_of(made: Made) -> dict[Key, tuple[str, str]]:
    return {(tenure.run_id, tenure.device_id, tenure.spell): tenure.price for tenure in made.tenures()}


def provisioned(made: Made) -> Counter[Key]:
    """Nanoseconds by run, device, class, pool and hour: each run's part."""
    prices = prices_of(made)
    return +Counter(
        {
            (run_id, device_id, *prices[run_id, device_id, spell], hour): part_ns
            for (run_id, device_id, spell, hour), (_, part_ns) in made.parts().items()
        }
    )


def device_hours(made: Made) -> Counter[Key]:
    """What each hour of each hardware in one class and pool costs, nano-dollars: each rounded once."""
    prices, times = prices_of(made), Counter[Key]()
    hardware = {(*key[:2], *prices[key]): name for key, name in made.hardware().items()}
    for (run_id, device_id, *price, hour), ns in provisioned(made).items():
        times[hardware[run_id, device_id, *price], *price, hour] += ns
    costs = Counter(dict.fromkeys(times, 0))
    for (name, device_class, pool, hour), ns in times.items():
        rate = Fraction(BOOK.device_at(device_class, pool, hour * HOUR_NS).usd_per_hour)
        costs[name, device_class, pool, hour] = half_even(rate * 10**9 * ns / HOUR_NS)
    return costs


def metered(made: Made) -> Counter[Key]:
    """Milliwatt-nanoseconds by run, device, class, pool and hour, where the device's price does not hold its energy."""
    prices, time, energy = prices_of(made), made.read(), Counter[Key]()
    for _, _, run_id, read in made.facts(events.Power):
        key = (run_id, str(read.device_id), made.spell(run_id, read.device_id, read.t0_ns))
        if read.power_mw is not None and prices[key][0] == "owned":
            for hour, ns in hours(read.t0_ns, read.t1_ns):
                energy[*key, hour] += read.power_mw * ns
    return +Counter(
        {
            (*key[:2], *prices[key], hour): mw_ns * time[*key, hour][1] // time[*key, hour][0]
            for (*name, hour), mw_ns in (+energy).items()
            for key in [tuple(name)]
        }
    )


def union_ns(spans: Iterable[tuple[int, int]]) -> Counter[int]:
    cover_ns: Counter[int] = Counter()
    until = 0
    for t0_ns, t1_ns in sorted(spans):
        for hour, ns in hours(max(t0_ns, until), t1_ns) if t1_ns > max(t0_ns, until) else ():
            cover_ns[hour] += ns
        until = max(until, t1_ns)
    return cover_ns


def slice_of(device_id: str, t0_ns: int, **ns: int) -> events.DeviceSlice:
    return any_event.slice_(t0_ns, device_id, **ns)


def made_of(recorded: Iterable[events.Event]) -> Made:
    return Made(tuple(Recorded(0, "w", "a", event) for event in recorded))
