"""The figures of `/metrics`: the cost of this UTC month so far. They are gauges, because a correction may lower a cost.
Each of the most expensive teams and runs has its own series; `__other__` is the sum of all others."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import duckdb
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from rose.errors import UserError
from rose.ledger import verified
from rose.pricing.api.questions import ServedLedger
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.closing.bill import provenances
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_S, NothingChargedError, PricingError
from rose.pricing.period import Period, month_at
from rose.pricing.query import rows, set_variables
from rose.pricing.spend.cost import Cost, Question, ask
from rose.pricing.spend.saved import ENDS, Saved
from rose.pricing.watch import budget

CONTENT_TYPE = CONTENT_TYPE_LATEST
RUNS_MAX = 100  #: Teams and runs of a ledger and provenance that have series of their own.
OTHER = "__other__"

_PART = ("ledger", "provenance")
_RUN = (*_PART, "team", "run")
_SO_FAR = "this UTC month so far"
_MERGED = f"beyond the {RUNS_MAX} most expensive, teams and runs are summed as {OTHER}"
METRICS: Mapping[str, tuple[tuple[str, ...], str]] = {  #: Every metric: its labels and what it is.
    "rose_cost_dollars": (
        (*_PART, "view", "team", "run"),
        f"Cost, {_SO_FAR}, by view. Never add views: amortized and fully loaded each sum to the bill, and marginal is "
        f"what borrowing added to the bill; {_MERGED}.",
    ),
    "rose_cost_bill_dollars": (_PART, f"The bill, {_SO_FAR}."),
    "rose_cost_rollout_dollars": (
        _PART,
        f"Cost of rollouts, borrowed and dedicated, amortized: {', '.join(ROLLOUT_BUCKETS)}, {_SO_FAR}.",
    ),
    "rose_cost_per_accepted_dollars": (_PART, f"Amortized rollout cost of an accepted answer, {_SO_FAR}."),
    "rose_saved_dollars": (
        (*_PART, "kind"),
        f"Savings of borrowing, {_SO_FAR}. cash_saved: against buying, if the fleet would exist anyway or if not. "
        "capacity_avoided: was on no bill. Never add kinds. A kind without a sample is not known.",
    ),
    "rose_borrowed_device_seconds": (_RUN, f"Rollout time on serving devices, {_SO_FAR}; {_MERGED}."),
    "rose_rollout_device_seconds": (_RUN, f"Rollout time on all devices, {_SO_FAR}; {_MERGED}."),
    "rose_rollout_tokens": (_RUN, f"Tokens that rollouts generated, {_SO_FAR}; {_MERGED}."),
    "rose_answers_accepted": (_RUN, f"Answers that were accepted and not stale, {_SO_FAR}; {_MERGED}."),
    "rose_serving_requests": (_PART, f"Serving requests that ended, {_SO_FAR}."),
    "rose_slo_attainment_ratio": (_PART, f"Share of ended serving requests within their latency budgets, {_SO_FAR}."),
    "rose_budget_dollars": (("ledger", "team"), "Budget of a team for this UTC month."),
    "rose_cost_example_prices": (_PART, "1 if the prices are made up, so that no figure is a cost."),
    "rose_cost_up": (("ledger",), "1 if the ledger was priced; 0 if it could not be, and then it has no figures."),
    "rose_cost_computed_timestamp_seconds": ((), "When these figures were made, Unix time."),
    "rose_ledger_sound": (("ledger",), "1 if the ledger verified when these figures were made."),
    "rose_ledger_problems": (("ledger",), "Problems of the ledger."),
    "rose_ledger_verified_timestamp_seconds": (("ledger",), "The ledger is verified up to this Unix time."),
}

Run = tuple[str, str]
Sample = tuple[str, tuple[str, ...], float | None]  #: A metric, its labels and its value. None is not shown.


def text(served: Sequence[ServedLedger], now_ns: int) -> bytes:
    """Return the figures of the month of `now_ns`. A ledger that cannot be priced has `rose_cost_up` 0 and no costs."""
    samples: list[Sample] = []
    month = month_at(now_ns)
    for one in served:
        own, up = (one.name,), 0
        with suppress(UserError, duckdb.Error, OSError):
            checked, last = one.ledger.verify(), verified.state(one.ledger.folder)
            samples.append(("rose_ledger_sound", own, checked.ok))
            samples.append(("rose_ledger_problems", own, len(checked.problems)))
            if last is not None:
                samples.append(("rose_ledger_verified_timestamp_seconds", own, last.until_us / 1e6))
            # Read before any is added: figures of half a ledger would look whole.
            figures = [sample for name in provenances(one.ledger, month) for sample in _figures(one, month, name)]
            budgets = budget.budgets(one.ledger, month).items()
            samples += [*figures, *(("rose_budget_dollars", (*own, team), _dollars(nano)) for team, nano in budgets)]
            up = 1
        samples.append(("rose_cost_up", own, up))
    samples.append(("rose_cost_computed_timestamp_seconds", (), time.time()))
    registry = CollectorRegistry()
    gauges = {name: Gauge(name, about, labels, registry=registry) for name, (labels, about) in METRICS.items()}
    for name, labels, value in samples:
        if value is not None:
            (gauges[name].labels(*labels) if labels else gauges[name]).set(value)
    return generate_latest(registry)


def _figures(served: ServedLedger, month: Period, provenance: str) -> Iterator[Sample]:
    """Yield the samples of a month, none if it has no charges. Raises PricingError or LedgerError."""
    labels, by = (served.name, provenance), ("team", "run", "pool", "bucket")
    question = Question(period=month, by=by, provenance=provenance)
    try:
        cost = ask(served.ledger, question, served.price_book)
        loaded = ask(served.ledger, replace(question, by=by[:2], view="fully-loaded"), served.price_book)
    except NothingChargedError:
        return
    try:
        saved = served.saved(month, provenance)
    except PricingError:
        saved = None
    with served.ledger.connect() as connection:
        set_variables(connection, from_ns=month.from_ns, to_ns=month.to_ns, provenance=provenance)
        accepted = {row["run_id"]: row["accepted"] for row in rows(connection, "api/answers")}
        (counted,) = rows(connection, "api/requests")
    rollout_nano = sum(line.cost_nano for line in cost.lines if line.values[-1] in ROLLOUT_BUCKETS)
    answers, requests = sum(accepted.values()), counted["requests"]
    yield "rose_cost_bill_dollars", labels, _dollars(cost.bill_nano)
    yield "rose_cost_rollout_dollars", labels, _dollars(rollout_nano)
    yield "rose_cost_per_accepted_dollars", labels, _dollars(rollout_nano / answers if answers else None)
    yield "rose_serving_requests", labels, requests
    yield "rose_slo_attainment_ratio", labels, 1 - counted["missed"] / requests if requests else None
    yield "rose_cost_example_prices", labels, cost.stamp.book.example
    # A sum without some of its fleets would look like the whole.
    if saved is not None and (fleet := saved.fleet).cash_nano is not None and fleet.why is None:
        for end, nano in zip(ENDS, fleet.cash_nano, strict=True):
            yield "rose_saved_dollars", (*labels, f"cash_saved_{end}"), _dollars(nano)
        yield "rose_saved_dollars", (*labels, "capacity_avoided"), _dollars(fleet.capacity_nano)
    series: defaultdict[tuple[str, ...], defaultdict[Run, float]] = defaultdict(lambda: defaultdict(float))
    for run, metric, value in _of_runs(cost, loaded, saved, accepted):
        series[metric][run] += value
    dearest = series["rose_cost_dollars", AMORTIZED]
    every = {run for by_run in series.values() for run in by_run}
    shown = set(sorted(every, key=lambda run: (-dearest.get(run, 0.0), run))[:RUNS_MAX])
    for (name, *view), by_run in series.items():
        merged: defaultdict[Run, float] = defaultdict(float)
        for run, value in by_run.items():
            merged[run if run in shown else (OTHER, OTHER)] += value
        yield from ((name, (*labels, *view, *run), value) for run, value in merged.items())


def _of_runs(
    cost: Cost, loaded: Cost, saved: Saved | None, accepted: Mapping[str, int]
) -> Iterator[tuple[Run, tuple[str, ...], float]]:
    """Yield ((team, run id), key, value). `key` has the metric's name and, for a cost, the view."""
    teams: dict[str, str] = {}
    for line in cost.lines:
        team, run, pool, bucket = line.values
        if bucket == "rollout":
            teams[run] = team  # A run's rollouts are of one team, whichever teams its devices' other time is of.
            yield (team, run), ("rose_rollout_device_seconds",), line.ns / NS_PER_S
            yield (team, run), ("rose_rollout_tokens",), line.tokens
            if pool == "serving":
                yield (team, run), ("rose_borrowed_device_seconds",), line.ns / NS_PER_S
        yield (team, run), ("rose_cost_dollars", AMORTIZED), line.cost_nano / NANO_USD_PER_USD
    for line in loaded.lines:
        team, run = line.values
        yield (team, run), ("rose_cost_dollars", FULLY_LOADED), line.cost_nano / NANO_USD_PER_USD
    for borrowed in saved.runs if saved else ():
        if (added_nano := borrowed.saving.added_nano) is not None:
            key = borrowed.team, borrowed.run_id
            yield key, ("rose_cost_dollars", MARGINAL), added_nano / NANO_USD_PER_USD
    for run, count in accepted.items():
        yield (teams.get(run, UNALLOCATED), run), ("rose_answers_accepted",), count


def _dollars(nano: float | None) -> float | None:
    return None if nano is None else nano / NANO_USD_PER_USD
