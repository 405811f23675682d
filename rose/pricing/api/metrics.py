"""`/metrics`: what this UTC month has cost so far, for Prometheus.

All are gauges: they begin anew with the month, and a correction may lower them. A team and run has a series of its own
while it is among the dearest; the others are summed in one whose team and run are `__other__`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import duckdb
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rose.errors import UserError
from rose.ledger import verified, verify
from rose.pricing.api import allocation, ledgers, summary
from rose.pricing.api.ledgers import Ledger, Part
from rose.pricing.api.parameters import AllocationQuery
from rose.pricing.charges import NothingChargedError
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from rose.pricing.money import NANO_USD_PER_USD, NS_PER_S
from rose.pricing.spend.cost import UNALLOCATED
from rose.pricing.watch import budget

CONTENT_TYPE = CONTENT_TYPE_LATEST
#: Teams and runs of a ledger and provenance that have series of their own.
RUNS_MAX = 100
OTHER = "__other__"

_PART = ("ledger", "provenance")
_RUN = (*_PART, "team", "run")
_SO_FAR = "this UTC month so far"
_MERGED = f"beyond the {RUNS_MAX} dearest, teams and runs are summed as {OTHER}"
#: Every metric: its labels and what it is.
METRICS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "rose_cost_dollars": (
        (*_PART, "view", "team", "run"),
        f"Cost, {_SO_FAR}, by view, which are never added to each other: amortized and fully loaded sum to the bill, "
        f"marginal is what borrowing added to it, of runs that count in the month; {_MERGED}.",
    ),
    "rose_cost_bill_dollars": (_PART, f"The bill, {_SO_FAR}."),
    "rose_cost_open_dollars": (_PART, f"What of the bill is not closed and may still change, {_SO_FAR}."),
    "rose_cost_rollout_dollars": (_PART, f"What rollout time cost, borrowed and dedicated, amortized, {_SO_FAR}."),
    "rose_cost_per_accepted_dollars": (_PART, f"Amortized rollout cost of an accepted answer, {_SO_FAR}."),
    "rose_cost_per_correct_dollars": (_PART, f"The same of a correct answer, where an audit knows them, {_SO_FAR}."),
    "rose_saved_dollars": (
        (*_PART, "kind"),
        "What borrowing saved in runs that count in this UTC month: cash if the fleet would have been there anyway, "
        "cash if not, and capacity avoided, which was on no bill. Never add them. Without a sample: not known.",
    ),
    "rose_borrowed_device_seconds": (_RUN, f"Rollout time on serving devices, {_SO_FAR}; {_MERGED}."),
    "rose_rollout_device_seconds": (_RUN, f"Rollout time on all devices, {_SO_FAR}; {_MERGED}."),
    "rose_rollout_tokens": (_RUN, f"Tokens that rollouts generated, {_SO_FAR}; {_MERGED}."),
    "rose_answers_judged": (_RUN, f"Answers that were judged and not stale, {_SO_FAR}; {_MERGED}."),
    "rose_answers_accepted": (_RUN, f"Those of them that were accepted, {_SO_FAR}; {_MERGED}."),
    "rose_answers_audited": (_RUN, f"Accepted answers whose truth an audit knows, {_SO_FAR}; {_MERGED}."),
    "rose_answers_correct": (_RUN, f"Audited ones that are correct, {_SO_FAR}; {_MERGED}."),
    "rose_serving_requests": (_PART, f"Serving requests that ended, {_SO_FAR}."),
    "rose_slo_attainment_ratio": (_PART, f"Share of them that kept their latency budgets, {_SO_FAR}."),
    "rose_budget_dollars": (("ledger", "team"), "Budget of a team for this UTC month."),
    "rose_cost_merged_runs": (_PART, f"Teams and runs that are summed as {OTHER}."),
    "rose_cost_example_prices": (_PART, "1 if the prices are made up, so that no figure is a cost."),
    "rose_cost_up": (("ledger",), "1 if the ledger was priced; 0 if it could not be, and then it has no figures."),
    "rose_cost_computed_timestamp_seconds": ((), "When these figures were made, Unix time."),
    "rose_ledger_sound": (("ledger",), "1 if the ledger verified when these figures were made."),
    "rose_ledger_problems": (("ledger",), "What is wrong with the ledger: how many problems."),
    "rose_ledger_verified_timestamp_seconds": (("ledger",), "Up to when the ledger was verified, Unix time."),
    "rose_ledger_every_byte_verified_timestamp_seconds": (
        ("ledger",),
        "Up to when every byte of the ledger was read and verified, Unix time; no sample: never.",
    ),
}

Run = tuple[str, str]


class _Samples(Collector):
    """Samples as they are added, by the metrics of METRICS."""

    def __init__(self) -> None:
        self._families = {
            name: GaugeMetricFamily(name, about, labels=labels) for name, (labels, about) in METRICS.items()
        }

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """A sample; none for what is not known."""
        if value is not None:
            self._families[name].add_metric(labels, value)

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


def text(served: Sequence[Ledger], now_ns: int) -> bytes:
    """The figures of the month that `now_ns` lies in. A ledger that cannot be priced has `rose_cost_up` 0, and none."""
    samples = _Samples()
    for ledger in served:
        try:
            _trust(samples, ledger)
            # Read before any is added: figures of half a ledger would look whole.
            found = [(part, _known(part)) for part in ledgers.parts([ledger], _query(AMORTIZED), now_ns)]
            month = budget.current_month(now_ns // 1000)
            for team, nano in budget.budgets(ledger.root, month).items():
                samples.add("rose_budget_dollars", [ledger.name, team], _dollars(nano))
            for part, known in found:
                _add(samples, part, known)
            up = 1
        except (UserError, duckdb.Error, OSError):
            up = 0
        samples.add("rose_cost_up", [ledger.name], up)
    samples.add("rose_cost_computed_timestamp_seconds", [], time.time())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(samples)
    return generate_latest(registry)


def _query(view: str) -> AllocationQuery:
    return AllocationQuery.model_validate(
        {"window": "month", "aggregate": "team,run", "costBasis": view.replace(" ", "_")}
    )


def _trust(samples: _Samples, ledger: Ledger) -> None:
    report, last = verify.verify(ledger.root, seen=ledger.seen), verified.state(ledger.root)
    samples.add("rose_ledger_sound", [ledger.name], report.ok)
    samples.add("rose_ledger_problems", [ledger.name], len(report.problems))
    if last is not None:
        samples.add("rose_ledger_verified_timestamp_seconds", [ledger.name], last.until_us / 1e6)
        if last.full_until_us is not None:
            name = "rose_ledger_every_byte_verified_timestamp_seconds"
            samples.add(name, [ledger.name], last.full_until_us / 1e6)


def _known(part: Part) -> tuple[summary.Facts, dict[Run, int]] | None:
    """What is known of a part, and its fully loaded cost by team and run; None where nothing was charged."""
    try:
        loaded = allocation.divide(part, _query(FULLY_LOADED))
        facts = summary.facts(part, by=("team", "run", "pool", "bucket"))
    except NothingChargedError:
        return None
    return facts, {(team, run): amounts["total_nano"] or 0 for (team, run), amounts in loaded.lines.items()}


def _add(samples: _Samples, part: Part, known: tuple[summary.Facts, dict[Run, int]] | None) -> None:
    if known is None:
        return
    facts, loaded = known
    labels = [part.ledger.name, part.provenance]
    figures = summary.figures(facts, facts.cost.stamp)
    for name, figure in (
        ("rose_cost_bill_dollars", "bill"),
        ("rose_cost_rollout_dollars", "rollout_cost"),
        ("rose_cost_per_accepted_dollars", "cost_per_accepted"),
        ("rose_cost_per_correct_dollars", "cost_per_correct"),
    ):
        samples.add(name, labels, _dollars(figures[figure].value))
    samples.add("rose_cost_open_dollars", labels, _dollars(facts.cost.total.open_nano))
    for kind in ("cash_saved_if_there_anyway", "cash_saved_if_not", "capacity_avoided"):
        samples.add("rose_saved_dollars", [*labels, kind], _dollars(figures[kind].value))
    samples.add("rose_serving_requests", labels, figures["serving_requests"].value)
    samples.add("rose_slo_attainment_ratio", labels, figures["slo_attainment"].value)
    samples.add("rose_cost_example_prices", labels, facts.cost.stamp.book.example)
    _add_runs(samples, labels, facts, loaded)


def _add_runs(samples: _Samples, labels: Sequence[str], facts: summary.Facts, loaded: Mapping[Run, int]) -> None:
    """What is known by team and run, the dearest with series of their own."""
    series: dict[tuple[str, str], defaultdict[Run, float]] = defaultdict(lambda: defaultdict(float))
    for run, name, view, value in _of_runs(facts, loaded):
        series[name, view][run] += value
    cost = series["rose_cost_dollars", AMORTIZED]
    every = {run for by_run in series.values() for run in by_run}
    own = set(sorted(every, key=lambda run: (-cost.get(run, 0.0), run))[:RUNS_MAX])
    samples.add("rose_cost_merged_runs", labels, len(every - own))
    for (name, view), by_run in series.items():
        merged: defaultdict[Run, float] = defaultdict(float)
        for run, value in by_run.items():
            merged[run if run in own else (OTHER, OTHER)] += value
        for run, value in merged.items():
            samples.add(name, [*labels, *([view] if view else []), *run], value)


def _of_runs(facts: summary.Facts, loaded: Mapping[Run, int]) -> Iterator[tuple[Run, str, str, float]]:
    """(team and run, metric, view, value) of all that is known by them."""
    teams: dict[str, str] = {}
    for line in facts.cost.lines:
        team, run, pool, bucket = line.values
        if bucket == "rollout":
            # A run's rollouts are of one team, whichever teams its devices' other time is of.
            teams[run] = team
            yield (team, run), "rose_rollout_device_seconds", "", line.ns / NS_PER_S
            yield (team, run), "rose_rollout_tokens", "", line.tokens
            if pool == "serving":
                yield (team, run), "rose_borrowed_device_seconds", "", line.ns / NS_PER_S
        yield (team, run), "rose_cost_dollars", AMORTIZED, line.cost_nano / NANO_USD_PER_USD
    for key, nano in loaded.items():
        yield key, "rose_cost_dollars", FULLY_LOADED, nano / NANO_USD_PER_USD
    if not isinstance(facts.saved, str):
        for made in facts.saved.runs:
            if made.added_nano is not None:
                yield (made.team, made.run_id), "rose_cost_dollars", MARGINAL, made.added_nano / NANO_USD_PER_USD
    for run, counts in (facts.answers or {}).items():
        for name, count in counts.items():
            if name == "audited_correct" and not counts["audited"]:
                # Nobody looked, which is not that none was.
                continue
            metric = f"rose_answers_{'correct' if name == 'audited_correct' else name}"
            yield (teams.get(run, UNALLOCATED), run), metric, "", count


def _dollars(nano: float | None) -> float | None:
    return None if nano is None else nano / NANO_USD_PER_USD
