"""The cost report as tables for a terminal, each titled with its view, currency and provenance."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from rose.clock import utc
from rose.pricing.document import Report, RunFacts
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, Figure, why_no_interval
from rose.pricing.run.operations import P99_SAMPLES, Engines, Latency

#: Engines that died are named one by one up to this many.
_ENDS_MAX = 5
#: Widest table, in characters.
WIDTH = 100

#: Said of a run whose engines did without SGLang's compiled kernels.
NATIVE_KERNELS = "Engines ran stand-ins for SGLang's kernels: mechanisms are shown, times and costs are not SGLang's"
#: What a figure that was not measured is marked with.
_MARKS = {"assumed": " (assumed)", "partly measured": " (partly assumed)"}
#: Columns of words rather than figures.
_PROSE = ("rests on", "detail", "view")


def show(report: Report, console: Console) -> None:
    """Print the whole report."""
    for table in tables(report):
        console.print(table)
        console.print()


def tables(report: Report) -> Iterable[RenderableType]:
    """What `show` prints, in order."""
    yield _heading(report)
    yield _headline(report)
    yield _views(report)
    yield _borrow(report)
    yield from _savings(report)
    yield _token_cost(report)
    yield _correct(report)
    yield _latency(report)
    yield _events(report)


def _table(report: Report, title: str, view: str, *columns: str) -> Table:
    table = Table(
        title=f"{title}  [{view}; {report.stamp}]".replace("[", "\\["),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        width=WIDTH,
    )
    for index, column in enumerate(columns):
        prose = index == 0 or column in _PROSE
        table.add_column(column, justify="left" if prose else "right", overflow="fold")
    return table


def _shown(figure: Figure) -> str:
    return figure.text + ("" if figure.value is None else _MARKS.get(figure.basis, ""))


def _heading(report: Report) -> str:
    run, stamp = report.run, report.stamp
    trace = "no serving trace"
    if run.trace:
        kept = "all" if run.trace_keep_share is None else f"{run.trace_keep_share:.1%}"
        trace = f"trace {escape(run.trace)}, {kept} of its requests, {_scales(run)}"
    warning = f"[bold red]{NATIVE_KERNELS}[/bold red]\n" if run.native_kernels else ""
    return (
        f"{warning}[bold]Run {escape(run.name)}[/bold] ({escape(run.run_id)}), {run.status}, {stamp.provenance}\n"
        f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}; serving traffic: {trace}\n"
        f"{escape(stamp.book.line)}"
    )


def _scales(run: RunFacts) -> str:
    """By how much the trace was changed to fit the host: no latency is shown without it."""
    scales = {
        "prompts": run.trace_length_scale,
        "outputs": run.trace_output_length_scale,
        "gaps": run.trace_time_scale,
    }
    return ", ".join(f"{name} x{scale:.3g}" for name, scale in scales.items() if scale is not None) or "unscaled"


def _headline(report: Report) -> Table:
    table = Table(
        title=f"At a glance  [{report.stamp}]".replace("[", "\\["),
        title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, width=WIDTH, show_header=False,
    )  # fmt: skip
    table.add_column(ratio=3)
    table.add_column(ratio=2, overflow="fold")
    first, last = _ends(report)
    borrowed, dedicated = report.token_cost["borrowed"], report.token_cost["dedicated"]
    for name, figure in (
        ("Fleet cost (amortized)", report.amortized["total"]),
        ("What borrowing added to the bill (marginal)", report.marginal["total"]),
        ("Cash saved by borrowing (marginal)", report.savings.cash_saved),
        ("Capacity avoided by borrowing (amortized, hypothetical)", report.savings.capacity_avoided),
        ("A million rollout tokens, borrowed (amortized)", borrowed[AMORTIZED]),
        ("A million rollout tokens, dedicated (amortized)", dedicated[AMORTIZED]),
        ("Idle serving time put to work (harvest share)", report.harvest_share),
        ("Leased, not used (idle time of serving devices under a lease)", report.leased_unused),
    ):
        table.add_row(name, _shown(figure))
    table.add_row("Trajectories the verifier accepted: all, first step, last step", f"{first[0]}, {first[1]}, {last}")
    return table


def _ends(report: Report) -> tuple[tuple[str, str], str]:
    steps = list(report.accept_by_step.values())
    if not steps:
        return (report.factors["accept_rate"].text, "-"), "-"
    return (report.factors["accept_rate"].text, steps[0].text), steps[-1].text


def _views(report: Report) -> Table:
    table = _table(
        report, "Where the fleet's time and money went", "three views, never added together",
        "device time", "time", "share", AMORTIZED, FULLY_LOADED, MARGINAL,
    )  # fmt: skip
    for bucket, time in report.device_time.items():
        marginal = report.marginal["total"] if bucket == "rollout" else None
        loaded = report.fully_loaded.get(bucket)
        table.add_row(
            bucket,
            time.text,
            report.device_share[bucket].text,
            report.amortized[bucket].text,
            loaded.text if loaded else "-",
            marginal.text if marginal else "-",
            style="bold red" if bucket == "unaccounted" and time.value else None,
        )
    for bucket in (name for name in report.amortized if name not in report.device_time and name != "total"):
        if report.amortized[bucket].value:
            table.add_row(bucket, "-", "-", report.amortized[bucket].text, "-", "-")
    table.add_section()
    total = [report.provisioned.text, "100.0%", report.amortized["total"].text, report.fully_loaded["total"].text, "-"]
    table.add_row("fleet", *total, style="bold")
    table.caption = "Marginal is what lending added to the bill; it does not sum to the bill."
    return table


def _borrow(report: Report) -> Table:
    table = _table(
        report, "What a borrowed device-hour costs", MARGINAL, "term", "per device-hour", "in all", "rests on"
    )
    for term, explained in report.borrow.explained.items():
        figure = report.borrow.per_device_hour[term]
        table.add_row(term.replace("_", " "), figure.text, report.marginal[term].text, explained)
    table.add_section()
    total = report.borrow.per_device_hour["total"]
    table.add_row(
        "total", total.text, report.marginal["total"].text, f"{report.borrow.borrowed.text} borrowed", style="bold"
    )
    table.caption = gate(report.borrow.idle_anyway)
    return table


def gate(idle_anyway: float | None) -> str:
    """What m holds under: whether the fleet would have existed without the leases, as the price book has it."""
    if idle_anyway is None:
        return (
            "It holds if the fleet would have existed without the leases, which the price book does not say; if not, "
            "borrowed time is charged at its amortized price on top."
        )
    if idle_anyway == 1:
        return "The price book states that the fleet would have existed without the leases."
    chance = "would NOT" if not idle_anyway else f"would with a probability of {idle_anyway:.0%}"
    return (
        f"The price book states that the fleet {chance} have existed without the leases: borrowed time is charged at "
        "its amortized price on top of these terms below, times the probability that it would not."
    )


def _savings(report: Report) -> Iterable[RenderableType]:
    of = report.savings
    title = "What borrowing saved"
    table = _table(report, title, "two figures, never added together", "figure", "in all", "95% interval", "view")
    rows = [("cash saved", of.cash_saved)]
    if of.cash_saved_if:
        rows = [(f"cash saved {which}", figure) for which, figure in of.cash_saved_if.items()]
    rows.append(("capacity avoided (hypothetical)", of.capacity_avoided))
    for name, figure in rows:
        table.add_row(name, _shown(figure), figure.interval_text or "-", figure.view)
    table.caption = why_no_interval(figure for _, figure in rows) or None
    yield table
    yield escape("\n".join(f"{name.replace('_', ' ').capitalize()}: {why}." for name, why in of.rests_on.items()))


def _token_cost(report: Report) -> Table:
    table = _table(
        report, "A million useful rollout tokens", "by view",
        "made on", "useful tokens", "wasted", MARGINAL, AMORTIZED, FULLY_LOADED,
    )  # fmt: skip
    for placement, views in report.token_cost.items():
        of = report.tokens[placement]
        table.add_row(
            f"{placement} devices", of["useful"].text, of["wasted_share"].text, _shown(views[MARGINAL]),
            views[AMORTIZED].text, views[FULLY_LOADED].text,
        )  # fmt: skip
    notes = ["Marginal, dedicated: what the borrowed tokens would have added to the bill there."]
    unallocated = report.tokens["unallocated"]["generated"]
    if unallocated.value:
        notes.append(f"{unallocated.text} tokens were made on a device that the ledger does not know: not priced.")
    table.caption = " ".join(notes)
    return table


def _correct(report: Report) -> Table:
    table = _table(
        report, "Cost per correct answer, rollout tokens priced at", "view by line",
        "price line", "view", "per accepted", "95% interval", "per audited correct",
        "hypothetical: formula, per M answer tokens",
    )  # fmt: skip
    for name, line in report.cost_per_correct.items():
        table.add_row(
            name, line.measured.view, line.measured.text, line.measured.interval_text or "-", line.per_correct.text,
            line.formula.text,
        )  # fmt: skip
    f = report.factors
    table.caption = (
        "The formula is hypothetical, at the list price of serving's tokens: "
        f"CPM {f['cpm'].text} x R {f['r'].text} x (1 + pi x rho {f['rho'].text}) / alpha {f['alpha'].text}; "
        f"borrowed share of useful tokens {f['phi'].text}. "
        + why_no_interval(line.measured for line in report.cost_per_correct.values())
    )
    return table


def _latency(report: Report) -> Table:
    run = report.run
    table = _table(
        report, "Serving latency", f"trace {run.trace}, {_scales(run)}" if run.trace else "no trace",
        "device", "requests", "missed budget", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99",
    )  # fmt: skip
    for name, of in report.latency.items():
        if name != "all":
            table.add_row(name, of.requests.text, of.missed_budget.text, *_percentiles(of))
    everything = report.latency["all"]
    table.add_section()
    table.add_row("all", everything.requests.text, everything.missed_budget.text, *_percentiles(everything))
    table.add_row("budget", "", "", "", everything.ttft_budget.text, "", everything.tpot_budget.text)
    few = [name for name, of in report.latency.items() if of.few_samples]
    if few:
        table.caption = f"Fewer than {P99_SAMPLES} samples ({', '.join(few)}): p99 is the largest value measured."
    return table


def _percentiles(of: Latency) -> tuple[str, str, str, str]:
    return of.ttft_p50.text, of.ttft_p99.text, of.tpot_p50.text, of.tpot_p99.text


def _events(report: Report) -> Table:
    table = _table(report, "Leases, preemptions, syncs", "counts", "what", "how many", "detail")
    leases = report.leases
    closings = ", ".join(f"{leases[key].text} {key}" for key in ("released", "preempted", "expired", "open"))
    table.add_row("leases granted", leases["granted"].text, f"{closings}; {leases['leased'].text} leased")
    for action, of in report.preemptions.items():
        detail = (
            f"{of.waited.text} waited"
            if action == "yield"
            else f"requests: {of.requests.text}; tokens kept: {of.tokens_kept.text}, lost: {of.tokens_lost.text}"
        )
        table.add_row(f"preemptions: {action}", of.count.text, detail)
    syncs = report.syncs
    table.add_row(
        "weight syncs",
        syncs.count.text,
        f"{syncs.failed.text} failed, {syncs.wire.text} sent, dense over sent {syncs.dense_over_wire.text}",
    )
    if report.engines.ends:
        table.add_row("engine restarts", report.engines.restarts.text, _ends_of_engines(report.engines))
    return table


def _ends_of_engines(engines: Engines) -> str:
    lines = [
        f"{escape(end.engine_id)} {'died' if end.ended else 'was back'} at {end.ended or end.restarted} "
        f"({escape(end.reason)})" + ("" if end.restarted else ", not started again")
        for end in engines.ends[:_ENDS_MAX]
    ]
    more = len(engines.ends) - _ENDS_MAX
    return "\n".join([*lines, *([f"and {more} more: `--json` has all"] if more > 0 else [])])
