"""The cost report of one run: every figure with its unit, view, currency, period and provenance.

The same ledger and the same price book give the same report, to the byte: nothing in it depends on when it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import polars as pl

from rose.ledger.examine import Seen
from rose.pricing.answers import cost_per_correct
from rose.pricing.borrowing import alternatives
from rose.pricing.borrowing.alternatives import Comparison
from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.marginal import in_all, per_device_hour
from rose.pricing.borrowing.report.savings import savings
from rose.pricing.charges.allocation import Allocation
from rose.pricing.document import Borrow, DeviceRow, Report, RunShare
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Figure, Figures
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows
from rose.pricing.run import price_lines
from rose.pricing.run.operations import engines, latency, leases, preemptions, syncs
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.run.tokens import FATES, Tokens

_MILLION = 10**6
_FLEETS_IDLE = "the idle time is that of the fleet, which it shares with others: the report of the fleet's run has it"
_DEDICATED_MARGINAL = "not enough data: no borrowed token would have had to be made there"


def build(
    root: Path,
    run_id: str | None = None,
    price_book: str | Path | PriceBook | None = None,
    allow_unverified: bool = False,
    seen: Seen | None = None,
) -> Report:
    """Price one run of the ledger at `root` (the newest with devices if `run_id` is None); `seen` is for `verify`.

    `price_book` None prices by the book that `choice.choose` gives.

    Raises PricingError for a ledger that does not verify (unless `allow_unverified`, which marks every figure), an
    unknown run, a run of mixed provenance, a period with no device time, and device time that does not add up;
    PriceBookError for a book that cannot be used or lacks a price that the run needs.
    """
    with priced(root, run_id, price_book, allow_unverified, seen) as run:
        return _build(run)


def _build(run: PricedRun) -> Report:
    make, allocation, borrow, tokens, connection = run.make, run.allocation, run.borrow, run.tokens, run.connection
    drawn = cost_per_correct.resample(run.groups)
    # Steps of several RL runs have nothing to do with one another.
    judged = run.charged.frame.filter(pl.col("fate").is_in(("accepted", "rejected", "stale")))
    one_run_judged = judged["run_id"].n_unique() <= 1
    compared = alternatives.compare(run.charged, allocation, borrow, run.groups, [], run.cost.spreads, market=False)
    c3, c3_per_correct = price_lines.c3(run, drawn)
    bucket_ns = allocation.bucket_ns()
    provisioned_ns = sum(bucket_ns.values())
    lent_ns = allocation.in_pools("serving").measured_ns()
    return Report(
        stamp=run.stamp,
        run=run.run,
        price_book=run.book_facts,
        provisioned=make.number(provisioned_ns, "ns"),
        device_time={bucket: make.number(ns, "ns") for bucket, ns in bucket_ns.items()},
        device_share={bucket: make.part(ns, provisioned_ns) for bucket, ns in bucket_ns.items()},
        devices=_devices(make, allocation),
        runs=_runs(run),
        amortized=_with_total(make, allocation.amortized_nano_usd(), AMORTIZED),
        fully_loaded=_with_total(make, allocation.fully_loaded_nano_usd(), FULLY_LOADED),
        marginal={
            **{name: in_all(make, term) for name, term in borrow.terms.items()},
            "total": make.money(
                borrow.usd, MARGINAL, basis=borrow.basis, interval=borrow.interval, no_interval=borrow.no_interval
            ),
        },
        borrow=_borrow(make, borrow),
        tokens={placement: _tokens(make, made) for placement, made in tokens.items()},
        token_cost=_token_cost(make, allocation, tokens, borrow, compared),
        harvest_share=make.part(
            lent_ns["rollout"] if run.charged.fleet is None else None,
            lent_ns["rollout"] + lent_ns["idle"] + lent_ns["headroom"],
            why=_FLEETS_IDLE
            if run.charged.fleet is not None
            else "not enough data: serving devices had nothing to lend",
        ),
        savings=savings(make, compared, borrow),
        leased_unused=make.number(rows(connection, "run/leased_unused")[0]["leased_unused_ns"], "ns"),
        factors=price_lines.factors(run, drawn),
        partials=price_lines.partials(run),
        accept_by_step={
            row["step"]: make.part(row["accepted"], row["judged"])
            for row in rows(connection, "run/accept_by_step")
            if one_run_judged
        },
        cost_per_correct=price_lines.price_lines(run, drawn),
        c3=c3,
        c3_per_correct=c3_per_correct,
        leases=leases(make, rows(connection, "run/lease_totals"), borrow.leased_ns),
        preemptions=preemptions(make, rows(connection, "run/preemption_totals")),
        syncs=syncs(make, rows(connection, "run/sync_totals")),
        engines=engines(make, rows(connection, "run/engine_ends")),
        latency=latency(make, rows(connection, "run/serving_latency")),
    )


def _runs(run: PricedRun) -> tuple[RunShare, ...]:
    """The fleet's own run first, then the RL runs, the dearest first; none where one run has all."""
    frame, fleet = run.charged.frame, run.run.run_id
    if run.charged.fleet is not None or (frame["run_id"] == fleet).all():
        return ()
    keys, loaded = ["run_id"], run.charged.fully_loaded()
    sums = frame.group_by(keys).agg(pl.col("ns").filter(kind="capacity").sum(), pl.col("cost_nano").sum())
    summed = sums.join(loaded.group_by(keys).agg(pl.col("loaded_nano").sum()), on=keys, how="full", coalesce=True)
    summed = summed.fill_null(0).sort(pl.col("run_id") != fleet, -pl.col("cost_nano"), "run_id")
    names = {row["run_id"]: row for row in rows(run.connection, "run/names")}
    return tuple(
        RunShare(
            run_id=run_id,
            name=names[run_id]["name"] if run_id in names else "",
            team=names[run_id]["team"] if run_id in names else None,
            time=run.make.number(ns, "ns"),
            amortized=run.make.amount(nano, AMORTIZED),
            fully_loaded=run.make.amount(loaded_nano, FULLY_LOADED),
            share=run.make.part(nano, run.charged.total_nano),
        )
        for run_id, ns, nano, loaded_nano in summed.iter_rows()
    )


def _devices(make: Figures, allocation: Allocation) -> tuple[DeviceRow, ...]:
    """Of an RL run that was on several fleets, each device is named after its fleet."""
    one_fleet = len({device.fleet_run_id for device in allocation.devices}) <= 1
    return tuple(
        DeviceRow(
            device_id=device.device_id if one_fleet else f"{device.fleet_run_id}/{device.device_id}",
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


def _borrow(make: Figures, borrow: Marginal) -> Borrow:
    return Borrow(
        idle_anyway=None if borrow.idle_anyway is None else float(borrow.idle_anyway),
        borrowed=make.number(borrow.borrowed_ns, "ns"),
        per_device_hour={
            **{name: per_device_hour(make, borrow, name) for name in borrow.terms},
            "total": per_device_hour(make, borrow),
        },
        explained={name: term.explained for name, term in borrow.terms.items()},
    )


def _tokens(make: Figures, made: Tokens) -> dict[str, Figure]:
    return {
        **{fate: make.number(made.by_fate[fate], "tokens") for fate in FATES},
        "generated": make.number(made.generated, "tokens"),
        "useful": make.number(made.useful, "tokens"),
        "wasted_share": make.part(made.wasted_share),
    }


def _token_cost(
    make: Figures, allocation: Allocation, tokens: Mapping[str, Tokens], borrow: Marginal, compared: Comparison
) -> dict[str, dict[str, Figure]]:
    """Dollars per million useful tokens: rollout dollars of a placement in a view over its useful tokens.

    A dedicated device is paid for whether it works or not, so at the margin its tokens cost what the borrowed ones
    would have made the fleet buy.
    """
    way = compared.alternatives[0] if compared.alternatives else None
    added = None if way is None else way.added_usd
    there_basis = "measured" if way is None else way.basis

    def per_million(usd: Fraction, placement: str, view: str, basis: str = "measured") -> Figure:
        useful = tokens[placement].useful
        why = f"not enough data: no useful token was made on {placement} devices"
        return make.money(usd * _MILLION / useful if useful else None, view, per="million tokens", basis=basis, why=why)

    result = {}
    for placement, pools in (("borrowed", ("serving",)), ("dedicated", ("rollout", "train"))):
        devices = allocation.in_pools(*pools)
        loaded_usd = Fraction(devices.fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        result[placement] = {
            MARGINAL: per_million(borrow.usd, placement, MARGINAL, borrow.basis)
            if placement == "borrowed"
            else make.money(
                None if added is None else added * _MILLION / tokens["borrowed"].useful,
                MARGINAL,
                per="million tokens",
                basis=there_basis,
                why=_DEDICATED_MARGINAL,
            ),
            AMORTIZED: per_million(cost_per_correct.rollout_usd(devices), placement, AMORTIZED),
            FULLY_LOADED: per_million(loaded_usd, placement, FULLY_LOADED),
        }
    return result
