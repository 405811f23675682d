"""The cost report of one run: every figure with its unit, view, currency, period and provenance.

The same ledger and the same price book give the same report, to the byte: nothing in it depends on when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import duckdb

from rose.ledger import catalog
from rose.ledger.examine import Seen
from rose.pricing import charges, correct, pricebook, trust
from rose.pricing.allocation import Allocation, allocate
from rose.pricing.charges import Charges
from rose.pricing.document import BookFacts, Borrow, DeviceRow, PriceLine, Report, RunFacts
from rose.pricing.figures import AMORTIZED, BLENDED, FULLY_LOADED, MARGINAL, Figure, Figures, Stamp
from rose.pricing.marginal import TERMS, Marginal, marginal
from rose.pricing.money import NANO_USD_PER_USD, PricingError
from rose.pricing.operations import latency, leases, preemptions, syncs
from rose.pricing.pricebook import PriceBook
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.tokens import FATES, Tokens, count

_MILLION = 10**6
_VIEW_OF_LINE = {
    "serving": AMORTIZED, "dedicated": AMORTIZED, "opportunistic": MARGINAL, "blended": BLENDED,
}  # fmt: skip
_NO_BORROW = "not enough data: no rollout ran on a serving device"
_DEDICATED_MARGINAL = "does not apply: a dedicated device is paid for whether it works or not"


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook = "example",
    allow_unverified: bool = False,
    seen: Seen | None = None,
) -> Report:
    """Price one run of the ledger at `root` (the newest if `run_id` is None); `seen` is for `verify`.

    Raises PricingError for a ledger that does not verify (unless `allow_unverified`, which marks every figure), an
    unknown run, a run of mixed provenance, a period with no device time, and device time that does not add up;
    PriceBookError for a book that cannot be used or lacks a price that the run needs.
    """
    book = price_book if isinstance(price_book, PriceBook) else pricebook.load(price_book)
    with closing(catalog.connect(root)) as connection:
        run_id = run_id or newest_run(connection)
        trust.refuse_archived(root, connection, run_id)
        run, provenance = _run_facts(connection, run_id)
        priced = charges.price(root, book, run_id=run_id, allow_unverified=allow_unverified, seen=seen)
        return _build(connection, run, provenance, priced)


def newest_run(connection: duckdb.DuckDBPyConnection) -> str:
    """The run that began last. Raises PricingError for a ledger without runs."""
    found = rows(connection, "newest_run")
    if not found:
        raise PricingError("the ledger holds no run yet; `rose demo` or `rose up` writes one")
    return str(found[0]["run_id"])


def _build(connection: duckdb.DuckDBPyConnection, run: RunFacts, provenance: str, priced: Charges) -> Report:
    run_id, book = run.run_id, priced.book
    snapshot(connection, run_id)
    allocation = allocate(priced)
    from_ns, to_ns = allocation.period_ns
    stamp = Stamp(from_ns=from_ns, to_ns=to_ns, provenance=provenance, currency=book.currency, verified=priced.verified)
    make = Figures(stamp)
    set_variables(connection, period_end_ns=to_ns)
    borrow = marginal(connection, run_id, allocation, book)
    tokens = count(connection, run_id)
    found = correct.groups(connection, run_id)
    cost = correct.token_cost(allocation, tokens, borrow)
    answers = rows(connection, "answer_tokens")[0]
    r = Fraction(int(answers["output_tokens"]), int(answers["answer_tokens"])) if answers["answer_tokens"] else None
    bucket_ns = allocation.bucket_ns()
    provisioned_ns = sum(bucket_ns.values())
    lent_ns = allocation.of("serving").bucket_ns()
    return Report(
        stamp=stamp,
        run=run,
        price_book=BookFacts(name=book.name, version=book.version, sha256=book.sha256, currency=book.currency),
        provisioned=make.number(provisioned_ns, "ns"),
        device_time={bucket: make.number(ns, "ns") for bucket, ns in bucket_ns.items()},
        device_share={bucket: make.part(ns, provisioned_ns) for bucket, ns in bucket_ns.items()},
        devices=_devices(make, allocation),
        amortized=_with_total(make, allocation.amortized_nano_usd(), AMORTIZED),
        fully_loaded=_with_total(make, allocation.fully_loaded_nano_usd(), FULLY_LOADED),
        marginal={
            **{term: make.money(borrow.terms[term].usd, MARGINAL, basis=borrow.terms[term].basis) for term in TERMS},
            "total": make.money(borrow.usd, MARGINAL, basis=_basis(borrow)),
        },
        borrow=_borrow(make, borrow),
        tokens={placement: _tokens(make, of) for placement, of in tokens.items()},
        token_cost=_token_cost(make, allocation, tokens, borrow),
        harvest_share=make.part(
            lent_ns["rollout"],
            lent_ns["rollout"] + lent_ns["idle"] + lent_ns["headroom"],
            why="not enough data: serving devices had nothing to lend",
        ),
        saved=_saved(make, cost, tokens, borrow),
        factors=_factors(make, book, found, cost, r),
        partials=_partials(make, book, r, found),
        accept_by_step={
            row["step"]: make.part(row["accepted"], row["judged"]) for row in rows(connection, "accept_by_step")
        },
        cost_per_correct=_lines(make, book=book, r=r, cost=cost, tokens=tokens, found=found, borrow=borrow),
        leases=leases(make, rows(connection, "lease_totals")),
        preemptions=preemptions(make, rows(connection, "preemption_totals")),
        syncs=syncs(make, rows(connection, "sync_totals")),
        latency=latency(make, rows(connection, "serving_latency")),
    )


def _run_facts(connection: duckdb.DuckDBPyConnection, run_id: str) -> tuple[RunFacts, str]:
    set_variables(connection, run_id=run_id)
    found = rows(connection, "run_facts")
    if not found:
        raise PricingError(f"the ledger has no run {run_id!r}; `rose ledger runs` lists those it has")
    if len(kinds := rows(connection, "run_provenance")) != 1:
        mix = ", ".join(f"{kind['events']} {kind['provenance']}" for kind in kinds)
        raise PricingError(f"run {run_id} mixes events of different provenance ({mix}); no figure may be made of both")
    (facts,) = found
    provenance = str(facts.pop("provenance"))
    return RunFacts(**facts), provenance


def _devices(make: Figures, allocation: Allocation) -> tuple[DeviceRow, ...]:
    return tuple(
        DeviceRow(
            device_id=device.device_id,
            pool=device.pool,
            device_class=device.device_class,
            provisioned=make.number(device.provisioned_ns, "ns"),
            cost=make.amount(device.cost_nano_usd, AMORTIZED),
            time={bucket: make.number(ns, "ns") for bucket, ns in device.bucket_ns.items()},
        )
        for device in allocation.devices
    )


def _with_total(make: Figures, nano_usd: Mapping[str, int], view: str) -> dict[str, Figure]:
    parts = {bucket: make.amount(amount, view) for bucket, amount in nano_usd.items()}
    return parts | {"total": make.amount(sum(nano_usd.values()), view)}


def _basis(borrow: Marginal) -> str:
    """The total rests on no better ground than its energy term; an unset penalty is explained beside its own term."""
    return borrow.terms["energy"].basis


def _borrow(make: Figures, borrow: Marginal) -> Borrow:
    per = {
        term: make.money(
            borrow.usd_per_device_hour(term),
            MARGINAL,
            per="device-hour",
            basis=borrow.terms[term].basis,
            why=_NO_BORROW,
        )
        for term in TERMS
    }
    total = make.money(borrow.usd_per_device_hour(), MARGINAL, per="device-hour", basis=_basis(borrow), why=_NO_BORROW)
    return Borrow(
        idle_anyway=borrow.idle_anyway,
        borrowed=make.number(borrow.borrowed_ns, "ns"),
        per_device_hour={**per, "total": total},
        explained={term: borrow.terms[term].explained for term in TERMS},
    )


def _tokens(make: Figures, of: Tokens) -> dict[str, Figure]:
    return {
        **{fate: make.number(of.by_fate[fate], "tokens") for fate in FATES},
        "generated": make.number(of.generated, "tokens"),
        "useful": make.number(of.useful, "tokens"),
        "wasted_share": make.part(of.wasted_share),
    }


def _token_cost(
    make: Figures, allocation: Allocation, tokens: Mapping[str, Tokens], borrow: Marginal
) -> dict[str, dict[str, Figure]]:
    """Dollars per million useful tokens: rollout dollars of a placement in a view over its useful tokens."""

    def per_million(usd: Fraction, placement: str, view: str, basis: str = "measured") -> Figure:
        useful = tokens[placement].useful
        why = f"not enough data: no useful token was made on {placement} devices"
        return make.money(usd * _MILLION / useful if useful else None, view, per="million tokens", basis=basis, why=why)

    result = {}
    for placement, pools in (("borrowed", ("serving",)), ("dedicated", ("rollout", "train"))):
        devices = allocation.of(*pools)
        loaded_usd = Fraction(devices.fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        result[placement] = {
            MARGINAL: per_million(borrow.usd, placement, MARGINAL, _basis(borrow))
            if placement == "borrowed"
            else make.money(None, MARGINAL, per="million tokens", why=_DEDICATED_MARGINAL),
            AMORTIZED: per_million(correct.rollout_usd(devices), placement, AMORTIZED),
            FULLY_LOADED: per_million(loaded_usd, placement, FULLY_LOADED),
        }
    return result


def _saved(make: Figures, cost: correct.TokenCost, tokens: Mapping[str, Tokens], borrow: Marginal) -> Figure:
    """The borrowed useful tokens at the dedicated devices' amortized price, less what the borrow cost.

    Below zero where borrowing cost more. Without the idle-anyway gate the borrow costs its amortized price.
    """
    dedicated, opportunistic = cost.by_line["dedicated"], cost.by_line["opportunistic"]
    useful = tokens["borrowed"].useful
    saved = None if dedicated is None or opportunistic is None else (dedicated - opportunistic) * useful
    why = "not enough data: it takes useful tokens on both borrowed and dedicated devices to compare them"
    return make.money(saved, MARGINAL, basis=_basis(borrow), why=why)


def _factors(
    make: Figures, book: PriceBook, found: correct.Groups, cost: correct.TokenCost, r: Fraction | None
) -> dict[str, Figure]:
    no_verdict = "not enough data: no verdict yet"
    return {
        "rho": make.part(found.rho, unit="ratio", why=no_verdict),
        "alpha": make.part(found.alpha, why=no_verdict),
        "accept_rate": make.part(found.accept_rate, why=no_verdict),
        "r": make.part(r, unit="ratio", why="not enough data: no trajectory ended with an answer"),
        "cpm": make.money(
            Fraction(book.tokens.input_usd_per_million + book.tokens.output_usd_per_million) / 2,
            AMORTIZED,
            per="million tokens",
            basis="price book",
        ),
        "phi": make.part(cost.borrowed_share, why="not enough data: no useful token was made"),
        "ppv": make.part(found.ppv, why="not enough data: no accepted trajectory was audited"),
    }


def _partials(make: Figures, book: PriceBook, r: Fraction | None, found: correct.Groups) -> dict[str, Figure]:
    known = correct.partials(book, r, found)
    return {
        name: make.money(
            None if known is None else Fraction(getattr(known, name)), AMORTIZED, per=f"million answer tokens/{name}"
        )
        for name in ("alpha", "cpm", "r", "one_plus_rho")
    }


def _lines(
    make: Figures,
    *,
    book: PriceBook,
    r: Fraction | None,
    cost: correct.TokenCost,
    tokens: Mapping[str, Tokens],
    found: correct.Groups,
    borrow: Marginal,
) -> dict[str, PriceLine]:
    result = {}
    measured, drawn = correct.measured(cost, found), correct.resample(found)
    for line in correct.LINES:
        view = _VIEW_OF_LINE[line]
        basis = "measured" if view == AMORTIZED else _basis(borrow)
        usd, per_accepted = cost.by_line[line], measured[line]
        per_correct = per_accepted / found.ppv if per_accepted is not None and found.ppv else None
        accepted_interval, correct_interval = correct.measured_interval(cost, tokens, found, drawn, line)
        pi = cost.pi(line)
        exact = correct.formula(book, r, found, pi)
        why = _why_no_line(line, usd, found)
        result[line] = PriceLine(
            token_cost=make.money(
                None if usd is None else usd * _MILLION, view, per="million tokens", basis=basis, why=why
            ),
            pi=make.part(pi, unit="ratio", why=why or "not enough data: serving's own price of a token is not known"),
            measured=make.money(
                per_accepted,
                view,
                per="accepted trajectory",
                basis=basis,
                why=why,
                interval=accepted_interval if per_accepted is not None else None,
            ),
            per_correct=make.money(
                per_correct,
                view,
                per="correct trajectory",
                basis=basis,
                why=why or "not enough data: no accepted trajectory was audited and found correct",
                interval=correct_interval if per_correct is not None else None,
            ),
            formula=make.money(
                None if exact is None else Fraction(exact),
                view,
                per="million answer tokens",
                basis="price book",
                why=why or "not enough data: a factor of the formula is not known",
            ),
        )
    return result


def _why_no_line(line: str, usd: Fraction | None, found: correct.Groups) -> str | None:
    if usd is None:
        where = {"dedicated": "dedicated", "blended": "any"}.get(line, "borrowed")
        return f"not enough data: no useful token was made on {where} devices"
    return None if found.accepted else "not enough data: nothing was accepted yet"
