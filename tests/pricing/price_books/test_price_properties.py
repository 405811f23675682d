"""What holds of any price book: books are drawn at random, written as TOML and read back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import TABLES, midnight_ns
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError

FIRST = date(2026, 1, 1)
DAYS = 40
CLASSES, POOLS, ROUTES = ("a", "b"), ("serving", "rollout"), ("near", "far")
#: One entry: its table, and key to value as TOML writes them.
Row = tuple[str, dict[str, str]]

#: A book has dozens of entries: fewer of them than of small things.
some = settings(max_examples=20)

rates = st.decimals(0, 20, places=4, allow_nan=False).map(lambda rate: str(abs(rate)))


def day(offset: int) -> str:
    return str(FIRST + timedelta(days=offset))


def named(**keys: str) -> dict[str, str]:
    return {key.rstrip("_"): f'"{value}"' for key, value in keys.items()}


#: What may have a price: table, its key, and the other fields of an entry.
THINGS: list[tuple[str, dict[str, str], Callable[[str], dict[str, str]]]] = [
    *(("device", named(class_=name, commitment="c"), lambda rate: {"usd_per_hour": rate}) for name in CLASSES),
    *(("device", named(class_="a", pool=pool, commitment="c"), lambda rate: {"usd_per_hour": rate}) for pool in POOLS),
    *(("offer", named(class_="a", commitment=c), lambda rate: {"usd_per_hour": rate}) for c in ("spot", "on demand")),
    *(("transfer", named(route=route), lambda rate: {"usd_per_gb": rate}) for route in ROUTES),
    ("electricity", {}, lambda rate: {"usd_per_kwh": rate, "pue": "1.25"}),
    (
        "lending",
        {},
        lambda rate: {
            "idle_anyway": "true",
            "scheduler_usd_per_lease_s": "0",
            "kv_recompute_usd_per_million_tokens": "0",
            "violation_usd": rate,
        },
    ),
    ("tokens", {}, lambda rate: {"input_usd_per_million": rate, "output_usd_per_million": "3"}),
    ("verifier", named(name="v"), lambda rate: {"usd_per_verdict": rate}),
]


@st.composite
def books(draw: st.DrawFn) -> list[Row]:
    """Entries of a good book: for each thing days cut at random, some of them with no price."""
    rows: list[Row] = []
    for table, key, fields in THINGS:
        cuts = sorted(draw(st.sets(st.integers(0, DAYS), min_size=1, max_size=4)))
        bounded = table in ("device", "offer")
        edges: list[int | None] = [*([] if bounded else [None]), *cuts, None]
        spans = list(pairwise(edges))
        # The tables that a book must have keep their first entry at least.
        kept = draw(st.sets(st.sampled_from(spans))) | ({spans[0]} if TABLES[table].key_fields == () else set())
        for start, end in (span for span in spans if span in kept):
            row = dict(key) | fields(draw(rates))
            row |= {} if start is None else {"valid_from": day(start)}
            row |= {} if end is None else {"valid_to": day(end)}
            rows.append((table, row))
    if not any(table == "device" for table, _ in rows):
        rows.append(("device", {**named(class_="b", commitment="c"), "usd_per_hour": "1", "valid_from": day(0)}))
    return rows


def written(rows: list[Row]) -> str:
    parts = ['name = "n"\nversion = "1"\ncurrency = "USD"\n']
    for table, row in rows:
        cited = {"source": '"by hand"', "source_date": "2026-01-01"}
        parts.append(f"[[{table}]]\n" + "".join(f"{key} = {value}\n" for key, value in (row | cited).items()))
    return "\n".join(parts)


def read(rows: list[Row]) -> PriceBook:
    return pricebook.parse(written(rows), "random.toml")


def ns(offset: int) -> int:
    midnight = midnight_ns(FIRST + timedelta(days=offset))
    assert midnight is not None
    return midnight


def looked_up(book: PriceBook, at_ns: int) -> list[Any]:
    """Every price at an instant; None where there is none."""
    lookups: list[Callable[[], Any]] = [
        *(lambda c=c, p=p: book.device_at(c, p, at_ns) for c in CLASSES for p in (*POOLS, "train")),
        *(lambda c=c: book.offers_at(c, at_ns) for c in CLASSES),
        *(lambda r=r: book.transfer_at(r, at_ns) for r in ROUTES),
        lambda: book.electricity_at(at_ns),
        lambda: book.lending_at(at_ns),
        lambda: book.tokens_at(at_ns),
        lambda: book.verifier_at("v", at_ns),
    ]
    prices: list[Any] = []
    for lookup in lookups:
        try:
            prices.append(lookup())
        except PriceBookError:
            prices.append(None)
    return prices


spans = st.tuples(st.integers(-5 * 24, (DAYS + 5) * 24), st.integers(0, 20 * 24)).map(
    lambda hours: (ns(0) + hours[0] * 3600 * 10**9 + 1, ns(0) + (hours[0] + hours[1]) * 3600 * 10**9 + 1)
)


@some
@given(books(), spans)
def test_stretches_divide_the_time_and_no_price_changes_inside_one(rows: list[Row], span: tuple[int, int]) -> None:
    book, (t0_ns, t1_ns) = read(rows), span
    stretches = book.stretches(t0_ns, t1_ns)
    assert bool(stretches) == (t0_ns < t1_ns)
    edges = [from_ns for from_ns, _ in stretches] + [to_ns for _, to_ns in stretches[-1:]]
    assert all(earlier < later for earlier, later in pairwise(edges))
    assert [(from_ns, to_ns) for from_ns, to_ns in pairwise(edges)] == stretches
    assert not stretches or (edges[0], edges[-1]) == (t0_ns, t1_ns)
    for from_ns, to_ns in stretches:
        at_start = looked_up(book, from_ns)
        midnights = (ns(offset) for offset in range(DAYS + 1) if from_ns < ns(offset) < to_ns)
        for at_ns in ((from_ns + to_ns) // 2, to_ns - 1, *midnights):
            assert looked_up(book, at_ns) == at_start


@settings(max_examples=20)
@given(books(), st.data())
def test_two_prices_for_one_day_are_always_refused(rows: list[Row], data: st.DataObject) -> None:
    assert len(read(rows).device) >= 1
    table, row = data.draw(st.sampled_from(rows))
    start = date.fromisoformat(row.get("valid_from", day(-9)))
    end = date.fromisoformat(row.get("valid_to", day(DAYS + 9)))
    # Any days that meet those of the entry: begin before its end, and end after the later of the two beginnings.
    first = data.draw(st.dates(start - timedelta(days=9), end - timedelta(days=1)))
    until = data.draw(st.dates(max(first, start) + timedelta(days=1), end + timedelta(days=9)) | st.none())
    second = {key: value for key, value in row.items() if key != "valid_to"} | {"valid_from": first.isoformat()}
    second |= {} if until is None else {"valid_to": until.isoformat()}
    place = data.draw(st.integers(0, len(rows)))
    with pytest.raises(PriceBookError, match=rf"{table}.* has two prices on one day"):
        read([*rows[:place], (table, second), *rows[place:]])
