"""`/summary` and `/runs`: the figures that are looked at every morning, each with all that must stand beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rose.pricing.api import window
from rose.pricing.api.allocation import money
from rose.pricing.api.ledgers import Ledger, Part, parts
from rose.pricing.api.parameters import ROWS_MAX, PeriodQuery, RequestError
from rose.pricing.charges import NothingChargedError
from rose.pricing.figures import AMORTIZED, MARGINAL, NOT_ENOUGH_DATA, Figure, Figures, Stamp
from rose.pricing.money import NANO_USD_PER_USD, PricingError
from rose.pricing.spend import saved
from rose.pricing.spend.cost import Cost, Line
from rose.pricing.spend.saved import ENDS, Saved

_ARCHIVED = "not known: events of this time were archived"
_NO_AUDIT = "not enough data: no audit knows the truth of an accepted answer"
_NONE_CORRECT = "not enough data: of the accepted answers that an audit saw, none was correct"
_SEVERAL_RUNS = "the answers are of the whole fleet; `rose report` has the interval of each run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a period is summed up from; None where it is not known. `cost` is by pool and bucket last."""

    cost: Cost
    #: Or why nothing is known of it.
    saved: Saved | str
    #: By run: judged, accepted, audited, audited_correct.
    answers: Mapping[str, Mapping[str, int]] | None
    #: requests, missed.
    requests: Mapping[str, int] | None

    @property
    def rollout_nano(self) -> int:
        """What rollout time cost, borrowed and dedicated (amortized)."""
        return sum(line.cost_nano for line in self.cost.lines if line.values[-1] == "rollout")

    def rollout_ns(self, *pools: str) -> int:
        """Device time of rollouts on devices of these pools; of all for none."""
        lines = (line for line in self.cost.lines if line.values[-1] == "rollout")
        return sum(line.ns for line in lines if not pools or line.values[-2] in pools)

    def counted(self, name: str) -> int | None:
        """The sum of a count of answers over all runs."""
        return None if self.answers is None else sum(row[name] for row in self.answers.values())


def facts(part: Part, by: tuple[str, ...] = ("pool", "bucket")) -> Facts:
    """Read them, the cost by these dimensions.

    Raises NothingChargedError where no device was there; PricingError for what cannot be priced; LedgerError.
    """
    ledger, whole = part.ledger, not part.ledger.archived(part.period)
    try:
        borrowing: Saved | str = part.saved()
    except PricingError as error:
        borrowing = str(error)
    return Facts(
        cost=part.ask(by),
        saved=borrowing,
        answers=answers(part) if whole else None,
        requests=ledger.rows("api/requests", part.period, part.provenance)[0] if whole else None,
    )


def answers(part: Part) -> dict[str, dict[str, int]]:
    """Trajectories judged, accepted, audited and correct, by run."""
    rows = part.ledger.rows("api/answers", part.period, part.provenance)
    return {row.pop("run_id"): row for row in rows}


def summary(ledgers: Sequence[Ledger], asked: PeriodQuery, now_ns: int) -> dict[str, Any]:
    """The response. Raises RequestError; PricingError for what cannot be priced; PriceBookError; LedgerError."""
    return {"code": 200, "data": [_summed_up(part) for part in parts(ledgers, asked, now_ns)]}


def _summed_up(part: Part) -> dict[str, Any]:
    head = _head(part)
    try:
        known = facts(part)
    except NothingChargedError as error:
        return head | {"figures": {}, "why": str(error)}
    stamp = known.cost.stamp
    return (
        head
        | stamp.to_json()
        | {
            "figures": {name: _json(figure) for name, figure in figures(known, stamp).items()},
            "trust": part.ledger.trust(),
        }
    )


def figures(known: Facts, stamp: Stamp) -> dict[str, Figure]:
    """The figures of a period by name."""
    make = Figures(stamp)
    accepted, audited, correct = (known.counted(name) for name in ("accepted", "audited", "audited_correct"))
    per_accepted = None if not accepted else Fraction(known.rollout_nano, NANO_USD_PER_USD * accepted)
    per_correct = per_accepted and (None if not audited or not correct else per_accepted * audited / correct)
    requests, missed = (None if known.requests is None else known.requests[name] for name in ("requests", "missed"))
    unknown = _ARCHIVED if accepted is None else None
    no_truth = _NONE_CORRECT if audited else _NO_AUDIT
    kept = None if requests is None or missed is None else requests - missed
    return {
        "bill": make.amount(known.cost.bill_nano, AMORTIZED),
        "rollout_cost": make.amount(known.rollout_nano, AMORTIZED),
        **_borrowing(known.saved, stamp),
        "cost_per_accepted": make.money(
            per_accepted,
            AMORTIZED,
            per="accepted answer",
            no_interval=_SEVERAL_RUNS,
            why=unknown or "not enough data: no answer was accepted",
        ),
        "cost_per_correct": make.money(
            per_correct, AMORTIZED, per="correct answer", no_interval=_SEVERAL_RUNS, why=unknown or no_truth
        ),
        "answers_accepted": make.number(accepted, "count", why=unknown),
        "slo_attainment": make.part(
            kept, requests or 0, why=unknown or "not enough data: no serving request was recorded"
        ),
        "serving_requests": make.number(requests, "count", why=unknown),
        "share_borrowed": make.part(
            known.rollout_ns("serving"), known.rollout_ns(), why="not enough data: no rollout ran"
        ),
        "borrowed_time": make.number(known.rollout_ns("serving"), "ns"),
    }


def _borrowing(made: Saved | str, stamp: Stamp) -> dict[str, Figure]:
    """What borrowing saved and added: of the runs that count in the period, with an interval where it is of one."""

    def figure(
        nano: int | None, view: str, interval: saved.Ends | None = None, no_interval: str | None = saved.NO_INTERVAL
    ) -> Figure:
        low, high = interval or (None, None)
        return Figure(
            value=nano,
            unit="nano_usd",
            view=view,
            stamp=stamp,
            low=low,
            high=high,
            why=(why or NOT_ENOUGH_DATA) if nano is None else None,
            no_interval=None if nano is None or interval else no_interval,
        )

    if isinstance(made, str):
        why: str | None = made
        views = dict.fromkeys([f"cash_saved_{end}" for end in ENDS], MARGINAL) | {"capacity_avoided": AMORTIZED}
        return {name: figure(None, view) for name, view in (views | {"borrowing_added": MARGINAL}).items()}
    unknown = [run for run in made.runs if run.capacity_nano is None or run.cash_nano is None]
    # A sum without some of its runs would look like the whole.
    why = None if not unknown else f"{len(unknown)} of {len(made.runs)} runs are not known; {unknown[0].why}"
    sums = saved.summed(made.runs) if not unknown else dict.fromkeys(("capacity_avoided_nano", "cash_saved_nano"))
    cash = sums["cash_saved_nano"] or dict.fromkeys(ENDS)
    added = [run.added_nano for run in made.runs if run.added_nano is not None]
    single = made.runs[0] if len(made.runs) == 1 else None
    no_interval = saved.NO_INTERVAL if single is None else "`rose saved` and `rose borrow` say what it rests on"
    return {
        **{
            f"cash_saved_{end}": figure(cash[end], MARGINAL, single.cash_interval if single else None, no_interval)
            for end in ENDS
        },
        "capacity_avoided": figure(sums["capacity_avoided_nano"], f"{AMORTIZED}, hypothetical", None, no_interval),
        "borrowing_added": figure(
            sum(added) if len(added) == len(made.runs) else None,
            MARGINAL,
            single.added_interval if single else None,
            no_interval,
        ),
    }


def runs(ledgers: Sequence[Ledger], asked: PeriodQuery, now_ns: int) -> dict[str, Any]:
    """The runs of a window, newest first, each with what it cost in it. Raises as `summary` does."""
    data = [row for part in parts(ledgers, asked, now_ns) for row in _runs(part)]
    if len(data) > ROWS_MAX:
        raise RequestError(
            f"parameter window is {asked.window!r}: the answer has more than {ROWS_MAX:,} runs; ask for a shorter one"
        )
    return {"code": 200, "data": data}


def _runs(part: Part) -> list[dict[str, Any]]:
    ledger, period = part.ledger, part.period
    known = [
        row
        for row in ledger.rows("api/runs", provenance=part.provenance)
        if row["started_ns"] is not None
        and row["started_ns"] < period.to_ns
        and (row["ended_ns"] is None or row["ended_ns"] >= period.from_ns)
    ]
    lines: dict[str, Line] = {}
    stamp, why = None, None
    try:
        charged = part.ask(("run",))
        lines, stamp = {line.values[0]: line for line in charged.lines}, charged.stamp
    except NothingChargedError as error:
        why = str(error)
    counted = None if ledger.archived(period) else answers(part)
    return [
        _head(part)
        | (stamp.to_json() if stamp else {})
        | {
            "run": row["run_id"],
            "name": row["name"],
            "team": row["team"],
            "model": row["model"],
            "fleet_run": row["fleet_run_id"],
            "status": row["status"],
            "reason": row["reason"],
            "started": window.rfc3339(row["started_ns"]),
            "ended": None if row["ended_ns"] is None else window.rfc3339(row["ended_ns"]),
            **_of_line(lines.get(row["run_id"]), why),
            **_answers_of(counted, row["run_id"]),
        }
        for row in known
    ]


def _of_line(line: Line | None, why: str | None) -> dict[str, Any]:
    """Amortized cost, device time and tokens of a run; null for one that has no charge in the window."""
    return {
        "view": AMORTIZED,
        "totalCost": money(None if line is None else line.cost_nano),
        "cost_nano": None if line is None else line.cost_nano,
        "ns": None if line is None else line.ns,
        "tokens": None if line is None else line.tokens,
        "why": None if line is not None else why or "no device time of the window is this run's",
    }


def _answers_of(counted: Mapping[str, Mapping[str, int]] | None, run_id: str) -> dict[str, int | None]:
    names = ("judged", "accepted", "audited", "audited_correct")
    if counted is None:
        return dict.fromkeys(names)
    return {name: Counter(counted.get(run_id, {}))[name] for name in names}


def _head(part: Part) -> dict[str, Any]:
    period = part.period
    return {
        "ledger": part.ledger.name,
        "provenance": part.provenance,
        "window": {"start": window.rfc3339(period.from_ns), "end": window.rfc3339(period.to_ns)},
    }


def _json(figure: Figure) -> dict[str, Any]:
    """A figure with its amount in whole units too, where it is money."""
    plain = figure.to_json()
    if figure.unit.startswith("nano_"):
        plain["amount"] = None if figure.value is None else money(int(figure.value))
    return plain
