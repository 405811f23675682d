"""The term `provision` of m: the cost of latency budgets that serving missed because of lending."""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from fractions import Fraction

import duckdb

from rose.pricing.figures import NOT_SET
from rose.pricing.marginal_cost import harm
from rose.pricing.marginal_cost.harm import Harm
from rose.pricing.marginal_cost.terms import Row, Stretches, Term, absent, in_turn
from rose.pricing.query import rows

NO_PENALTY = f"{NOT_SET}: the price book has no penalty for a missed budget; state one, `violation_usd`, in [lending]"
_NOTHING_TO_COMPARE = "not enough data: no request of this load arrived while its device was not lent"


def realised(
    measured: Harm, connection: duckdb.DuckDBPyConnection, stretches: Stretches
) -> tuple[Term, dict[date, Fraction]]:
    """Return the cost of missed budgets and of latency, also by day. If the harm is confounded, latency is left out."""
    if not any(penalties(stretches)):
        return absent(NO_PENALTY), {}
    if measured.confounded is None:
        return harm.realised(measured, stretches), harm.realised_by_day(measured)
    bins = rows(connection, "borrowing/violations_by_load")
    return confounded(bins, stretches, measured.confounded), confounded_by_day(bins, stretches)


def confounded(bins: Sequence[Row], stretches: Stretches, why: str) -> Term:
    """[D] Return the term if windows cannot be compared: the sum over load bins of N_lent * (v_lent - v_unlent) *
    penalty. N is the number of requests and v the late share. Lent requests arrived while their device was leased. The
    sum covers bins with lent and unlent requests. There is no interval, because leases depend on load."""
    compared = _compared(bins)
    counted = sum(row["requests"] for row, _ in compared)
    left_out = sum(row["requests"] for row in bins if row["lent"]) - counted
    extra = sum((beyond for _, beyond in compared), Fraction(0))
    prices = in_turn(f"${float(penalty):g}" for penalty in penalties(stretches))
    usd, missing = sum(confounded_by_day(bins, stretches).values(), Fraction(0)), left_out and not counted
    explained = f"{why}; {float(extra):+.1f} missed budgets beyond unlent time of the same load, {prices} each; "
    explained += f"{counted:,} lent requests compared, {left_out:,} had nothing to compare with"
    return Term(usd, "measured", explained, None, why, _NOTHING_TO_COMPARE if missing else None)


def confounded_by_day(bins: Sequence[Row], stretches: Stretches) -> dict[date, Fraction]:
    per_miss = penalties(stretches)
    by_day = {row["day"]: Fraction(0) for row in bins}
    for row, beyond in _compared(bins):
        by_day[row["day"]] += beyond * per_miss[stretches.of_day(row["day"])]
    return by_day


def _compared(bins: Sequence[Row]) -> list[tuple[Row, Fraction]]:
    """Return (row, excess) of lent requests: misses beyond those expected from unlent requests at this load."""
    requests, misses = Counter[int](), Counter[int]()
    for row in bins:
        if not row["lent"] and row["load_bin"] is not None:
            requests[row["load_bin"]] += row["requests"]
            misses[row["load_bin"]] += row["violations"]
    missed_share = {load_bin: Fraction(misses[load_bin], requests[load_bin]) for load_bin in requests}
    return [
        (row, int(row["violations"]) - missed_share[row["load_bin"]] * row["requests"])
        for row in bins
        if row["lent"] and row["load_bin"] in missed_share
    ]


def penalties(stretches: Stretches) -> list[Fraction]:
    return [Fraction(entry.violation_usd) for entry in stretches.lending]
