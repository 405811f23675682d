"""The figures of `/metrics`: the cost of this UTC month so far. They are gauges, because a correction may lower a cost.
Each of the most expensive teams and runs has its own series; `__other__` is the sum of all others."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from rose.pricing.spend.cost import Cost, Question
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


class Samples:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(name, about, labels, registry=self.registry) for name, (labels, about) in METRICS.items()
        }

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        if value is not None:
            gauge = self._gauges[name]
            (gauge.labels(*labels) if labels else gauge).set(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    cost: Cost  #: By team, run, pool and bucket.
    loaded: Cost  #: By team and run, fully loaded.
    saved: Saved | None
    accepted: Mapping[str, int]  #: By run.
    requests: int
    missed: int


def text(served: Sequence[ServedLedger], now_ns: int) -> bytes:
    """Return the figures of the month of `now_ns`. A ledger that cannot be priced has `rose_cost_up` 0 and no costs."""
    samples, month = Samples(), month_at(now_ns)
    for one in served:
        try:
            checked, last = one.ledger.verify(), verified.state(one.ledger.folder)
            samples.add("rose_ledger_sound", [one.name], checked.ok)
            samples.add("rose_ledger_problems", [one.name], len(checked.problems))
            if last is not None:
                samples.add("rose_ledger_verified_timestamp_seconds", [one.name], last.until_us / 1e6)
            # Read before any is added: figures of half a ledger would look whole.
            facts = {name: _read(one, month, name, now_ns) for name in provenances(one.ledger, month)}
            for team, nano in budget.budgets(one.ledger, month).items():
                samples.add("rose_budget_dollars", [one.name, team], _dollars(nano))
            for provenance, own in facts.items():
                if own is not None:
                    add(samples, [one.name, provenance], own)
            up = 1
        except (UserError, duckdb.Error, OSError):
            up = 0
        samples.add("rose_cost_up", [one.name], up)
    samples.add("rose_cost_computed_timestamp_seconds", [], time.time())
    return generate_latest(samples.registry)


def _read(served: ServedLedger, month: Period, provenance: str, now_ns: int) -> Facts | None:
    """Return the facts of a month, or None if it has no charges. Raises PricingError or LedgerError."""
    by = ("team", "run", "pool", "bucket")
    try:
        amortized = served.cost(Question(period=month, by=by, provenance=provenance))
        loaded = served.cost(Question(period=month, by=by[:2], provenance=provenance, view="fully-loaded"))
    except NothingChargedError:
        return None
    try:
        borrowing = served.saved(month, provenance)
    except PricingError:
        borrowing = None
    with served.ledger.connect() as connection:
        set_variables(connection, from_ns=month.from_ns, to_ns=month.to_ns, provenance=provenance)
        accepted = {row["run_id"]: row["accepted"] for row in rows(connection, "api/answers")}
        (requests,) = rows(connection, "api/requests")
    return Facts(cost=amortized, loaded=loaded, saved=borrowing, accepted=accepted, **requests)


def add(samples: Samples, labels: Sequence[str], facts: Facts) -> None:
    rollout_nano = sum(line.cost_nano for line in facts.cost.lines if line.values[-1] in ROLLOUT_BUCKETS)
    accepted = sum(facts.accepted.values())
    samples.add("rose_cost_bill_dollars", labels, _dollars(facts.cost.bill_nano))
    samples.add("rose_cost_rollout_dollars", labels, _dollars(rollout_nano))
    samples.add("rose_cost_per_accepted_dollars", labels, _dollars(rollout_nano / accepted if accepted else None))
    samples.add("rose_serving_requests", labels, facts.requests)
    samples.add("rose_slo_attainment_ratio", labels, 1 - facts.missed / facts.requests if facts.requests else None)
    samples.add("rose_cost_example_prices", labels, facts.cost.stamp.book.example)
    # A sum without some of its fleets would look like the whole.
    if facts.saved is not None and (fleet := facts.saved.fleet).cash_nano is not None and fleet.why is None:
        for end, nano in zip(ENDS, fleet.cash_nano, strict=True):
            samples.add("rose_saved_dollars", [*labels, f"cash_saved_{end}"], _dollars(nano))
        samples.add("rose_saved_dollars", [*labels, "capacity_avoided"], _dollars(fleet.capacity_nano))
    series: dict[tuple[str, str], defaultdict[Run, float]] = defaultdict(lambda: defaultdict(float))
    for run, name, view, value in _of_runs(facts):
        series[name, view][run] += value
    cost = series["rose_cost_dollars", AMORTIZED]
    every = {run for by_run in series.values() for run in by_run}
    own = set(sorted(every, key=lambda run: (-cost.get(run, 0.0), run))[:RUNS_MAX])
    for (name, view), by_run in series.items():
        merged: defaultdict[Run, float] = defaultdict(float)
        for run, value in by_run.items():
            merged[run if run in own else (OTHER, OTHER)] += value
        for run, value in merged.items():
            samples.add(name, [*labels, *([view] if view else []), *run], value)


def _of_runs(facts: Facts) -> Iterator[tuple[Run, str, str, float]]:
    teams: dict[str, str] = {}
    for line in facts.cost.lines:
        team, run, pool, bucket = line.values
        if bucket == "rollout":
            teams[run] = team  # A run's rollouts are of one team, whichever teams its devices' other time is of.
            yield (team, run), "rose_rollout_device_seconds", "", line.ns / NS_PER_S
            yield (team, run), "rose_rollout_tokens", "", line.tokens
            if pool == "serving":
                yield (team, run), "rose_borrowed_device_seconds", "", line.ns / NS_PER_S
        yield (team, run), "rose_cost_dollars", AMORTIZED, line.cost_nano / NANO_USD_PER_USD
    for line in facts.loaded.lines:
        team, run = line.values
        yield (team, run), "rose_cost_dollars", FULLY_LOADED, line.cost_nano / NANO_USD_PER_USD
    for borrowed in facts.saved.runs if facts.saved else ():
        if (added_nano := borrowed.saving.added_nano) is not None:
            key = borrowed.team, borrowed.run_id
            yield key, "rose_cost_dollars", MARGINAL, added_nano / NANO_USD_PER_USD
    for run, count in facts.accepted.items():
        yield (teams.get(run, UNALLOCATED), run), "rose_answers_accepted", "", count


def _dollars(nano: float | None) -> float | None:
    return None if nano is None else nano / NANO_USD_PER_USD
