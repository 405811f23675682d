"""A run of a verified ledger, with its prices and counts, and the heading of the run's reports."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import duckdb

from rose.clock import utc
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges.allocation import Allocation, allocate
from rose.pricing.charges.pricing import refuse_archived
from rose.pricing.figures import BookFacts, Figures, Stamp
from rose.pricing.marginal_cost.marginal import Marginal, marginal
from rose.pricing.money import PricingError, QuestionError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import pin, rows, set_variables, snapshot_pinned
from rose.pricing.run import cost_per_correct, tokens
from rose.pricing.run.tokens import RolloutOutput, Tokens, rollout_outputs, together
from rose.pricing.table import Paragraph

#: Required events of a report: devices for the cost of a run, verdicts for the cost of a correct answer.
Needs = Literal["device", "verdict"]
SCHEMA = 3  #: Version of the form of reports in JSON.


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    run_id: str
    name: str
    provenance: str
    status: str  # `running`, `ended` or `failed`.
    began_ns: int  # UTC nanoseconds: decides token and verdict prices.
    ended_at: str | None  # ISO 8601, UTC; None while it runs.
    reason: str | None
    trace: str | None
    trace_keep_share: float | None
    trace_length_scale: float | None
    trace_output_length_scale: float | None
    trace_time_scale: float | None
    native_kernels: bool  # Stand-ins ran for SGLang's compiled kernels, so no time is SGLang's.


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedRun:
    """A run with its dollars, tokens and groups. `connection` has a snapshot of the run's rows."""

    connection: duckdb.DuckDBPyConnection
    run: RunFacts
    book: PriceBook
    stamp: Stamp
    charged: charges.Charges
    allocation: Allocation
    borrow: Marginal
    tokens: Mapping[str, Tokens]
    groups: cost_per_correct.Groups
    cost: cost_per_correct.TokenCost

    @property
    def make(self) -> Figures:
        return Figures(self.stamp)

    @property
    def cpm_usd(self) -> float:
        return cost_per_correct.cpm(self.book, self.run.began_ns)


@contextmanager
def priced(
    ledger: Ledger, run_id: str | None = None, price_book: str | Path | PriceBook | None = None, needs: Needs = "device"
) -> Iterator[PricedRun]:
    """Price a run, by default the newest run that has events of the kind `needs`.

    Raises PricingError if the ledger does not verify, or if the run is unknown, mixes provenances, or has no device
    time. Raises PriceBookError if the price book cannot be used or lacks a price."""
    with closing(ledger.connect()) as connection:
        pin(connection, ledger)
        run_id = newest_run(connection, needs) if run_id is None else run_id
        refuse_archived(ledger, connection, run_id)
        run = run_facts(connection, run_id)
        book = pricebook.choose(ledger, price_book, run_id=run_id, own=partial(pricebook.own_books, connection, run_id))
        charged = charges.price(ledger, book, run_id=run_id)
        snapshot_pinned(connection, run_id)
        allocation = allocate(charged)
        if not any(allocation.bucket_ns().values()):
            raise PricingError(f"run {run_id} has no device time yet, so it cannot be priced")
        from_ns, to_ns = allocation.period_ns
        borrow = marginal(connection, run_id, allocation, book)
        counted = tokens.count(connection, run_id)
        set_variables(connection, period_from_ns=from_ns, period_end_ns=to_ns, blocks=tokens.BLOCKS)
        places: dict[tuple[str, str], list[RolloutOutput]] = {}
        for (pool, device_class), part in rollout_outputs(charged).items():
            places.setdefault(("borrowed" if pool == "serving" else "dedicated", device_class), []).append(part)
        sums = {key: together(parts) for key, parts in places.items()}
        usd_per_ns = {key: float(part.usd / part.rollout_ns) for key, part in sums.items() if part.rollout_ns}
        spreads = tokens.spreads(rows(connection, "run/rollout_blocks"), usd_per_ns)
        yield PricedRun(
            connection=connection,
            run=run,
            book=book,
            stamp=Stamp(
                from_ns=from_ns,
                to_ns=to_ns,
                provenance=run.provenance,
                book=BookFacts.from_book(book),
                verified=charged.verified,
            ),
            charged=charged,
            allocation=allocation,
            borrow=borrow,
            tokens=counted,
            groups=cost_per_correct.groups(connection, run_id),
            cost=cost_per_correct.token_cost(allocation, counted, borrow, spreads),
        )


def newest_run(connection: duckdb.DuckDBPyConnection, needs: Needs = "device") -> str:
    set_variables(connection, needs=needs)
    runs = rows(connection, "run/newest")
    if not runs:
        raise PricingError("the ledger has no run yet; `rose demo` or `rose up` writes one")
    return str(runs[0]["run_id"])


def run_facts(connection: duckdb.DuckDBPyConnection, run_id: str) -> RunFacts:
    set_variables(connection, run_id=run_id)
    runs = rows(connection, "run/facts")
    if not runs:
        raise QuestionError(f'the ledger has no run {run_id!r}; `rose sql "from run"` lists its runs')
    (facts,) = runs
    if len(mix := facts["provenances"]) != 1:
        raise PricingError(
            f"run {run_id} mixes events of different provenance ({', '.join(mix)}); no figure may combine them"
        )
    return RunFacts(**{field.name: facts[field.name] for field in fields(RunFacts)})


def heading(run: RunFacts, stamp: Stamp, traffic: str = "") -> Paragraph:
    return Paragraph(
        f" ({run.run_id}), {run.status}, {stamp.provenance}",
        lead=f"Run {run.name}",
        more=(f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}{traffic}", stamp.book.line),
    )


def to_json(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **{name: part.to_json() if hasattr(part, "to_json") else asdict(part) for name, part in parts.items()},
    }
