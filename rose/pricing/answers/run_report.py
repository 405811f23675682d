"""The cost report of a run. The same ledger and price book always give a report with the same bytes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl

from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.pricing.answers import correct_answer
from rose.pricing.borrowing.alternatives import Comparison, compare
from rose.pricing.borrowing.comparison import CAPACITY, CASH, savings_table
from rose.pricing.borrowing.marginal_tables import added, terms_table
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Figure, Figures, Stamp
from rose.pricing.money import NANO_USD_PER_USD, PricingError
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.run import cost_per_correct
from rose.pricing.run.priced import PricedRun, RunFacts, heading, priced, to_json
from rose.pricing.run.tokens import FATES
from rose.pricing.table import Element, Mark, Paragraph, Row, Section, Table, notes, report_table, values

CLOSINGS: tuple[str, ...] = ("released", "preempted", "expired", "open")
P99_SAMPLES = 100  #: With fewer samples than this, a 99th percentile is the largest one measured.
NATIVE_KERNELS = "Engines ran stand-ins for SGLang's kernels: mechanisms are shown, times and costs are not SGLang's"
FLEET_COST, HARVEST = "Fleet cost (amortized)", "Idle serving time put to work (harvest share)"
HARVEST_OF_UNUSED = "Time that serving alone would leave, put to work (harvest of unused)"
UNUSED = "Leased, not used (idle time of serving devices under a lease)"
WITHHELD = "Idle because the experiment withheld leases"
RUN_COST = "This run's cost (amortized)"  #: In place of the fleet's, in the report of an RL run.
ACCEPTED = "Trajectories the verifier accepted"
_MILLION = 10**6
_FLEETS_IDLE = "idle time belongs to the fleet: see the report of the fleet's run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    run: RunFacts
    stamp: Stamp
    section: Section

    def elements(self) -> Iterator[Element]:
        if self.run.native_kernels:
            yield Paragraph(NATIVE_KERNELS, alarm=True)
        yield heading(self.run, self.stamp, f"; serving traffic: {_traffic(self.run)}")
        yield from self.section.parts.values()

    def to_json(self) -> dict[str, Any]:
        return to_json({"stamp": self.stamp, "run": self.run, "price_book": self.stamp.book, "report": self.section})


def build(ledger: Ledger, run_id: str | None = None, price_book: str | Path | PriceBook | None = None) -> Report:
    """Price a run and return its report. Raises the same errors as `priced`."""
    with priced(ledger, run_id, price_book) as run:
        return Report(run=run.run, stamp=run.stamp, section=Section(_tables(run)))


def _tables(run: PricedRun) -> dict[str, Table]:
    make, resamples = run.make, cost_per_correct.resample(run.groups)
    comparison = compare(run, market=False)
    counted = rows(run.connection, "run/totals")
    totals = {what: [row for row in counted if row["what"] == what] for what in ("lease", "preemption", "sync")}
    sums_ns = {row["what"]: row["ns"] for row in counted if row["what"] not in totals}
    saved, tokens = savings_table(make, comparison, run.borrow), _token_cost(run, comparison)
    tables = {
        "glance": _glance(run, saved, tokens, sums_ns),
        "time": _time(run),
        "runs": _runs(run),
        "borrow": terms_table(make, run.borrow),
        "savings": saved,
        "tokens": tokens,
        "fates": _fates(run),
        **correct_answer.lines_and_c3(run, resamples),
        "latency": _latency(run, rows(run.connection, "run/serving_latency")),
        "events": _events(make, totals["lease"], totals["sync"], run.borrow.leased_ns),
        "preemptions": _preemptions(make, totals["preemption"]),
    }
    return {name: table for name, table in tables.items() if table is not None}


def _traffic(run: RunFacts) -> str:
    if not run.trace:
        return "no replayed traffic"
    kept = "all" if run.trace_keep_share is None else f"{run.trace_keep_share:.1%}"
    return f"trace {run.trace}, {kept} of its requests, {_scales(run)}"


def _scales(run: RunFacts) -> str:
    scales = {"prompts": run.trace_length_scale, "outputs": run.trace_output_length_scale, "gaps": run.trace_time_scale}
    return ", ".join(f"{name} x{scale:.3g}" for name, scale in scales.items() if scale is not None) or "unscaled"


def _glance(run: PricedRun, saved: Table, tokens: Table, sums_ns: Mapping[str, int]) -> Table:
    make, serving = run.make, run.allocation.in_pools("serving").measured_ns()
    alone, delayed_ns = run.charged.fleet is None, min(sums_ns["delayed beyond work"], serving["serving"])
    rollout_ns = serving["rollout"] if alone else None
    left_ns = serving["rollout"] + serving["idle"] + serving["headroom"]
    why = "not enough data: serving devices had nothing to lend" if alone else _FLEETS_IDLE
    set_variables(run.connection, part="step", blocks=2**31 - 1)
    # Steps of several RL runs are unrelated.
    judged = run.charged.frame.filter(pl.col("fate").is_in(("accepted", "rejected", "stale")))
    steps = rows(run.connection, "answers/accepted") if judged["run_id"].n_unique() <= 1 else []
    at_most = ", at most" if run.borrow.missing or run.borrow.absent else ""
    figures = {
        FLEET_COST if alone else RUN_COST: make.amount(run.allocation.cost_nano_usd, AMORTIZED),
        "What borrowing added to the bill (marginal)": added(make, run.borrow),
        f"Saved by borrowing, against buying{at_most} (marginal)": saved.row(CASH)["value"],
        "Capacity avoided by borrowing (amortized, hypothetical)": saved.row(CAPACITY)["value"],
        correct_answer.THOUSAND: correct_answer.thousand(run),
        "A million rollout tokens, borrowed (amortized)": tokens.row("borrowed devices")[AMORTIZED],
        "A million rollout tokens, dedicated (amortized)": tokens.row("dedicated devices")[AMORTIZED],
        HARVEST: make.part(rollout_ns, left_ns, why=why),
        # The time that serving takes alone is not below 0.
        HARVEST_OF_UNUSED: make.part(rollout_ns, left_ns + delayed_ns, why=why),
        UNUSED: make.number(sums_ns["leased unused"], "ns"),
        WITHHELD: make.number(sums_ns["withheld idle"] if alone else None, "ns", why=_FLEETS_IDLE),
        ACCEPTED: make.part(run.groups.accept_rate, why=correct_answer.NO_VERDICT),
    }
    for name, step in (("first", steps[:1]), ("last", steps[-1:])):
        figures |= {f"{ACCEPTED}, {name} step": make.part(row["accepted"], row["judged"]) for row in step}
    return values("At a glance", figures, run.stamp, "", header=False)


def _time(run: PricedRun) -> Table:
    make, bucket_ns = run.make, run.allocation.bucket_ns()
    amortized, loaded = run.allocation.amortized_nano_usd(), run.allocation.fully_loaded_nano_usd()
    whole_ns = sum(bucket_ns.values())
    marginal = make.amount(sum(run.borrow.nano_usd.values()), MARGINAL, basis=run.borrow.basis)
    shown = [bucket for bucket in amortized if bucket in bucket_ns or amortized[bucket]]
    marks: dict[int, Mark] = {
        number: "alarm" for number, bucket in enumerate(shown) if bucket == "unaccounted" and bucket_ns.get(bucket)
    }

    def cells(name: str, ns: int | None, nano: int, loaded_nano: int | None) -> Row:
        return (
            name,
            None if ns is None else make.number(ns, "ns"),
            None if ns is None else make.part(ns, whole_ns),
            make.amount(nano, AMORTIZED),
            None if loaded_nano is None else make.amount(loaded_nano, FULLY_LOADED),
            marginal if name == "rollout" else None,
        )

    return report_table(
        run.stamp,
        "The fleet's device time and cost",
        f"device time | time | share | {AMORTIZED} | {FULLY_LOADED} | {MARGINAL}",
        (cells(bucket, bucket_ns.get(bucket), amortized[bucket], loaded.get(bucket)) for bucket in shown),
        view="three views, never added together",
        footer=(cells("fleet", whole_ns, sum(amortized.values()), sum(loaded.values())),),
        marks=marks,
        notes=("Marginal is what lending added to the bill; it does not sum to the bill.",),
    )


def _runs(run: PricedRun) -> Table | None:
    make, frame, fleet = run.make, run.charged.frame, run.run.run_id
    if run.charged.fleet is not None or (frame["run_id"] == fleet).all():
        return None
    keys, loaded = ["run_id", "team"], run.charged.fully_loaded()
    sums = frame.group_by(keys).agg(pl.col("ns").filter(kind="capacity").sum(), pl.col("cost_nano").sum())
    summed = sums.join(loaded.group_by(keys).agg(pl.col("loaded_nano").sum()), on=keys, how="full", coalesce=True)
    summed = summed.fill_null(0).sort(
        pl.col("run_id") != fleet, -pl.col("cost_nano").sum().over("run_id"), "run_id", -pl.col("cost_nano"), "team"
    )
    names = {row["run_id"]: row["name"] for row in rows(run.connection, "run/names")}

    def cells(ns: int, nano: int, loaded_nano: int) -> Row:
        amounts = make.amount(nano, AMORTIZED), make.amount(loaded_nano, FULLY_LOADED)
        return make.number(ns, "ns"), *amounts, make.part(nano, run.charged.total_nano)

    return report_table(
        run.stamp,
        "Who shared the fleet",
        f"run | name | team | device time | {AMORTIZED} | {FULLY_LOADED} | share",
        ((run_id, names.get(run_id, ""), team, *cells(*sums)) for run_id, team, *sums in summed.iter_rows()),
        view="two views, never added together",
        text=("name", "team"),
        footer=(("fleet", "", "", *cells(*(int(summed[name].sum()) for name in ("ns", "cost_nano", "loaded_nano")))),),
        notes=(
            "An RL run has the rollouts, syncs, activations and headroom of the engines that it was assigned, and its "
            "training; the fleet's own run has serving, idle time and what nobody reports.",
        ),
    )


def _token_cost(run: PricedRun, comparison: Comparison) -> Table:
    """Return dollars per million useful tokens. The marginal price on dedicated devices is what the borrowed tokens
    would have added to the bill on dedicated devices."""
    make, way = run.make, comparison.way

    def per_million(usd: Fraction | None, placement: str, view: str, basis: str = "measured", why: str = "") -> Figure:
        useful = run.tokens[placement].useful
        price = None if usd is None or not useful else usd * _MILLION / useful
        why = why or f"not enough data: no useful token was made on {placement} devices"
        return make.money(price, view, per="million tokens", basis=basis, why=why)

    added_usd, basis = (None, "measured") if way is None else (way.added_usd, way.basis)
    marginal = {
        "borrowed": per_million(run.borrow.usd, "borrowed", MARGINAL, run.borrow.basis),
        "dedicated": per_million(added_usd, "borrowed", MARGINAL, basis, "not enough data: no token was borrowed"),
    }

    def cells(placement: str, *pools: str) -> Row:
        devices, tokens = run.allocation.in_pools(*pools), run.tokens[placement]
        loaded_usd = Fraction(devices.fully_loaded_nano_usd()["rollout"], NANO_USD_PER_USD)
        return (
            f"{placement} devices",
            make.number(tokens.useful, "tokens"),
            make.part(tokens.wasted_share),
            marginal[placement],
            per_million(cost_per_correct.rollout_usd(devices), placement, AMORTIZED),
            per_million(loaded_usd, placement, FULLY_LOADED),
        )

    return report_table(
        run.stamp,
        "A million useful rollout tokens",
        f"made on | useful tokens | tokens wasted | {MARGINAL} | {AMORTIZED} | {FULLY_LOADED}",
        (cells("borrowed", "serving"), cells("dedicated", "rollout", "train")),
        view="by view",
        notes=("Marginal, dedicated: what the borrowed tokens would have added to the bill there.",),
    )


def _fates(run: PricedRun) -> Table:
    lost = run.tokens["unallocated"].generated
    counts = {name: (made.generated, *(made.by_fate[fate] for fate in FATES)) for name, made in run.tokens.items()}
    return report_table(
        run.stamp,
        "Rollout tokens by fate",
        f"made on | generated | {' | '.join(FATES)}",
        ((name, *(run.make.number(count, "tokens") for count in each)) for name, each in counts.items()),
        view="tokens",
        notes=(f"{lost:,} tokens were made on a device that the ledger does not know: not priced.",) if lost else (),
    )


def _latency(run: PricedRun, totals: Sequence[Mapping[str, Any]]) -> Table:
    """Return request latency on lent and on other devices. If a budget differs between requests, its range is shown."""
    make = run.make
    by_name = {"all" if row["everything"] else "lent" if row["lent"] else "not lent": row for row in totals}
    by_name = {name: by_name.get(name, {"requests": 0}) for name in ("lent", "not lent", "all")}
    percentiles = ("ttft_p50_ns", "ttft_p99_ns", "tpot_p50_ns", "tpot_p99_ns")

    def cells(name: str) -> Row:
        row = by_name[name]
        return (
            name,
            make.number(row["requests"], "count"),
            make.part(row.get("violations"), row["requests"]),
            *(make.number(row.get(column), "ns") for column in percentiles),
        )

    def budget(kind: str) -> Figure:
        least, most = (by_name["all"].get(f"{kind}_budget_{end}_ns", 0) for end in ("min", "max"))
        differs = None if least == most else f"differs between requests: {least / 1e6:g} to {most / 1e6:g} ms"
        return make.number(None if differs else least or None, "ns", why=differs)

    samples = {name: min(row["ttft_samples"], row["tpot_samples"]) for name, row in by_name.items() if row["requests"]}
    few = ", ".join(name for name, count in samples.items() if count < P99_SAMPLES)
    warning = f"Fewer than {P99_SAMPLES} values of TTFT or TPOT ({few}): p99 is the largest value measured."
    facts = run.run
    return report_table(
        run.stamp,
        "Serving latency",
        "device | requests | missed budget | TTFT p50 | TTFT p99 | TPOT p50 | TPOT p99",
        (cells("lent"), cells("not lent")),
        view=f"trace {facts.trace}, {_scales(facts)}" if facts.trace else "requests of users",
        footer=(cells("all"), ("budget", None, None, None, budget("ttft"), None, budget("tpot"))),
        notes=notes(warning if few else "", _longer(run)),
    )


def _longer(run: PricedRun) -> str:
    query = named.load("delay_by_request").text.rstrip().removesuffix(";")
    names = "run_longer_share, run_longer_p99_share, allowed_share"
    found = run.connection.execute(
        f"SELECT {names} FROM ({query}) WHERE run_longer_share IS NOT NULL LIMIT 1"
    ).fetchone()
    if found is None:
        return ""
    mean, p99, allowed = found
    text = (
        f"Beside rollouts, serving's tokens took {mean:.1%} longer than alone on average, {p99:.1%} at p99 of requests"
    )
    return f"{text}." if allowed is None else f"{text}; {allowed:.1%} is allowed."


def _events(
    make: Figures, leases: Sequence[Mapping[str, Any]], syncs: Sequence[Mapping[str, Any]], leased_ns: int
) -> Table:
    """Return counts of leases and syncs. Raises PricingError if a lease has an unknown closing reason."""
    counts = dict.fromkeys(CLOSINGS, 0) | {row["name"]: row["number"] for row in leases}
    if unknown := counts.keys() - CLOSINGS:
        raise PricingError(f"leases have closing reason {', '.join(sorted(unknown))}, not one of {', '.join(CLOSINGS)}")
    good, bad = (
        next((row for row in syncs if row["name"] == name), {"number": 0, "wire_bytes": 0, "dense_bytes": 0, "ns": 0})
        for name in ("ok", "failed")
    )
    figures = {
        "leases granted": make.number(sum(counts.values()), "count"),
        **{f"leases {closing}": make.number(number, "count") for closing, number in counts.items()},
        "time leased": make.number(leased_ns, "ns"),
        "weight syncs": make.number(good["number"] + bad["number"], "count"),
        "weight syncs failed": make.number(bad["number"], "count"),
        "bytes sent": make.number(good["wire_bytes"] + bad["wire_bytes"], "bytes"),
        "dense over sent": make.part(int(good["dense_bytes"]), int(good["wire_bytes"]), unit="ratio"),
        "paused for syncs": make.number(good["ns"] + bad["ns"], "ns"),
    }
    return report_table(
        make.stamp,
        "Leases and weight syncs",
        "what | how many",
        (*figures.items(),),
        view="counts",
        notes=("Dense over sent: of syncs that succeeded.",),
    )


def _preemptions(make: Figures, totals: Sequence[Mapping[str, Any]]) -> Table:
    units = {"number": "count", "ns": "ns", "requests": "count", "tokens_kept": "tokens", "tokens_lost": "tokens"}
    by_action: dict[str, Mapping[str, Any]] = {name: dict.fromkeys(units, 0) for name in ("yield", "cut", "revoke")}
    by_action |= {row["name"]: row for row in totals}
    return report_table(
        make.stamp,
        "What serving took back",
        "action | how many | waited | requests | tokens kept | tokens lost",
        (
            (action, *(make.number(by_action[action][name], unit, why="not recorded") for name, unit in units.items()))
            for action in ("yield", "cut", "revoke")
        ),
        view="counts",
    )
