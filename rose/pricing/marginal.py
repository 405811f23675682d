"""What the borrow added to the bill: energy, transfer, scheduler, recomputed KV cache, provision.

[D] m = dP * PUE * tariff / 3.6e6 + transfer_GB * $/GB / borrowed_s + scheduler + KV recompute + provision, in dollars
per borrowed device-second. A borrowed device-second is a second of rollout work on a serving device (`rollout_ns`).
Each term is kept as a total in dollars, an exact fraction, so that terms add up before anything is rounded.

m is a decision figure and does not sum to the bill. It holds only if the fleet would have existed without the leases;
the price book states that (`idle_anyway`). Where it does not hold, a borrowed second costs its full amortized price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import duckdb

from rose.pricing.allocation import Allocation
from rose.pricing.money import NS_PER_HOUR, NS_PER_S
from rose.pricing.pricebook import PriceBook
from rose.pricing.query import rows, set_variables

TERMS: tuple[str, ...] = ("energy", "transfer", "scheduler", "kv_recompute", "provision")
Basis = Literal["measured", "assumed", "partly measured", "price book"]

_BYTES_PER_GB = 10**9
_MILLION = 10**6
_J_PER_KWH = 3_600_000
#: Device time that draws a rollout's power: the work itself, and getting ready for it.
_DRAWING = ("rollout", "sync", "activation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One term of m, in dollars over the whole run, and how it was come by."""

    usd: Fraction
    basis: Basis
    explained: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Marginal:
    """The five terms, and the borrowed time they are for."""

    terms: Mapping[str, Term]
    borrowed_ns: int
    idle_anyway: bool

    @property
    def usd(self) -> Fraction:
        """What the borrow added to the bill."""
        return sum((term.usd for term in self.terms.values()), Fraction(0))

    def usd_per_device_hour(self, term: str | None = None) -> Fraction | None:
        """m, or one term of it, per borrowed device-hour; None where nothing was borrowed."""
        usd = self.usd if term is None else self.terms[term].usd
        return usd * NS_PER_HOUR / self.borrowed_ns if self.borrowed_ns else None


def marginal(connection: duckdb.DuckDBPyConnection, run_id: str, allocation: Allocation, book: PriceBook) -> Marginal:
    """The marginal cost of a run's borrow. Raises PriceBookError for a route or a device's power the book lacks."""
    set_variables(connection, run_id=run_id, period_end_ns=allocation.period_ns[1])
    leased_ns = sum(int(row["leased_ns"]) for row in rows(connection, "lease_totals"))
    serving = allocation.of("serving")
    return Marginal(
        terms={
            "energy": _energy(serving, rows(connection, "power_by_load"), rows(connection, "lease_by_class"), book),
            "transfer": _transfer(rows(connection, "sync_totals"), book),
            "scheduler": Term(
                usd=Fraction(book.lending.scheduler_usd_per_lease_s) * leased_ns / NS_PER_S,
                basis="measured",
                explained=f"{leased_ns / NS_PER_S:,.1f} s leased at ${book.lending.scheduler_usd_per_lease_s} a second",
            ),
            "kv_recompute": _kv_recompute(int(rows(connection, "recomputed_tokens")[0]["tokens"]), book),
            "provision": provision(rows(connection, "violations_by_load"), book),
        },
        borrowed_ns=serving.bucket_ns()["rollout"],
        idle_anyway=book.lending.idle_anyway,
    )


def extra_power_mw(readings: Iterable[Mapping[str, Any]]) -> Fraction | None:
    """[D] dP: mean power while lent minus mean power not lent within the same load bin, in milliwatts.

    `readings` have `load_bin`, `lent`, `energy_mw_ns`, `duration_ns`. Bins are weighted by their lent time; one that
    lacks either side says nothing. None if no bin has both.
    """
    by_bin: dict[int, dict[bool, tuple[int, int]]] = defaultdict(dict)
    for row in readings:
        by_bin[row["load_bin"]][row["lent"]] = (int(row["energy_mw_ns"]), int(row["duration_ns"]))
    both = [sides for sides in by_bin.values() if len(sides) == 2]
    if not both:
        return None
    extra = sum(
        (sides[True][0] - Fraction(sides[False][0], sides[False][1]) * sides[True][1] for sides in both), Fraction(0)
    )
    return extra / sum(sides[True][1] for sides in both)


def _energy(serving: Allocation, readings: list[dict[str, Any]], leases: list[dict[str, Any]], book: PriceBook) -> Term:
    """Measured: dP times leased time. Without meter readings to compare: (load - idle) from the book times the time
    in which a rollout drew power."""
    leased_ns = {row["device_class"]: int(row["leased_ns"]) for row in leases}
    joules = Fraction(0)
    how: dict[str, str] = {}
    for device_class in sorted({device.device_class for device in serving.devices}):
        devices = [d for d in serving.devices if d.device_class == device_class]
        drawing_ns = sum(d.bucket_ns[bucket] for d in devices for bucket in _DRAWING)
        if not drawing_ns and not leased_ns.get(device_class):
            continue
        delta_mw = extra_power_mw(row for row in readings if row["device_class"] == device_class)
        if delta_mw is not None:
            joules += delta_mw / 1000 * Fraction(leased_ns.get(device_class, 0), NS_PER_S)
            how[device_class] = f"{device_class}: {float(delta_mw) / 1000:+.1f} W while lent, metered"
        else:
            figure = book.power_of(device_class)
            joules += Fraction(figure.load_w - figure.idle_w) * Fraction(drawing_ns, NS_PER_S)
            how[device_class] = f"{device_class}: {figure.load_w - figure.idle_w} W, assumed"
    kwh = joules * Fraction(book.electricity.pue) / _J_PER_KWH
    assumed = sum("assumed" in text for text in how.values())
    basis: Basis = "measured" if not assumed else "assumed" if assumed == len(how) else "partly measured"
    return Term(
        usd=kwh * Fraction(book.electricity.usd_per_kwh),
        basis=basis,
        explained=("; ".join(how.values()) or "nothing was lent")
        + f"; PUE {book.electricity.pue}, ${book.electricity.usd_per_kwh}/kWh",
    )


def _transfer(syncs: list[dict[str, Any]], book: PriceBook) -> Term:
    """Every byte sent to a serving device, failed syncs included: they were sent all the same."""
    by_route: dict[str, int] = defaultdict(int)
    for row in syncs:
        if row["pool"] == "serving":
            by_route[row["route"]] += int(row["wire_bytes"])
    usd = sum(
        (Fraction(book.transfer_of(route).usd_per_gb) * size / _BYTES_PER_GB for route, size in by_route.items()),
        Fraction(0),
    )
    routes = ", ".join(
        f"{size / _BYTES_PER_GB:,.3f} GB {route} at ${book.transfer_of(route).usd_per_gb}/GB"
        for route, size in sorted(by_route.items())
    )
    return Term(usd=usd, basis="measured", explained=routes or "no sync to a serving device")


def _kv_recompute(tokens: int, book: PriceBook) -> Term:
    rate = book.lending.kv_recompute_usd_per_million_tokens
    return Term(
        usd=Fraction(rate) * tokens / _MILLION,
        basis="measured",
        explained=f"{tokens:,} prompt tokens computed again at ${rate} per million",
    )


def provision(bins: Iterable[Mapping[str, Any]], book: PriceBook) -> Term:
    """[D] Realised: sum over load bins of N_lent * (v_lent - v_unlent) * penalty, not clipped at zero.

    `bins` have `load_bin`, `lent`, `requests`, `violations`. Requests in a bin that has no unlent ones to compare with
    are left out, and the explanation says how many.
    """
    penalty = book.lending.violation_usd
    if penalty == 0:
        return Term(usd=Fraction(0), basis="price book", explained="the price book sets no penalty for a missed budget")
    by_bin: dict[int, dict[bool, tuple[int, int]]] = defaultdict(dict)
    for row in bins:
        by_bin[row["load_bin"]][row["lent"]] = (row["requests"], row["violations"])
    extra, compared, left_out = Fraction(0), 0, 0
    for sides in by_bin.values():
        lent_requests, lent_violations = sides.get(True, (0, 0))
        if False in sides:
            unlent_requests, unlent_violations = sides[False]
            extra += lent_violations - Fraction(unlent_violations, unlent_requests) * lent_requests
            compared += lent_requests
        else:
            left_out += lent_requests
    return Term(
        usd=extra * Fraction(penalty),
        basis="measured",
        explained=f"{float(extra):+.1f} missed budgets against unlent time of the same load, ${penalty} each; "
        f"{compared} lent requests compared, {left_out} had nothing to compare with",
    )
