"""The cost report as tables for a terminal, each titled with its view, currency and provenance."""

from __future__ import annotations

from collections.abc import Iterator

from rose.pricing.document import Report, RunFacts, heading
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL, why_no_interval
from rose.pricing.run.operations import P99_SAMPLES, Engines, Latency
from rose.pricing.table import Element, Mark, Paragraph, Row, Table, columns, notes

#: Engines that died are named one by one up to this many.
_ENDS_MAX = 5

#: Of a run whose engines did without SGLang's compiled kernels.
NATIVE_KERNELS = "Engines ran stand-ins for SGLang's kernels: mechanisms are shown, times and costs are not SGLang's"


def tables(report: Report) -> Iterator[Element]:
    """What `rose report` shows, in order."""
    if report.run.native_kernels:
        yield Paragraph(NATIVE_KERNELS, alarm=True)
    yield heading(report.run, report.stamp, f"; serving traffic: {_traffic(report.run)}")
    yield _headline(report)
    yield _views(report)
    yield from _runs(report)
    yield _borrow(report)
    yield from _savings(report)
    yield _token_cost(report)
    yield _correct(report)
    yield _latency(report)
    yield _events(report)


def _traffic(run: RunFacts) -> str:
    if not run.trace:
        return "no serving trace"
    kept = "all" if run.trace_keep_share is None else f"{run.trace_keep_share:.1%}"
    return f"trace {run.trace}, {kept} of its requests, {_scales(run)}"


def _scales(run: RunFacts) -> str:
    """By how much the trace was changed to fit the host: no latency is shown without it."""
    scales = {
        "prompts": run.trace_length_scale,
        "outputs": run.trace_output_length_scale,
        "gaps": run.trace_time_scale,
    }
    return ", ".join(f"{name} x{scale:.3g}" for name, scale in scales.items() if scale is not None) or "unscaled"


def _headline(report: Report) -> Table:
    first, last = _ends(report)
    borrowed, dedicated = report.token_cost["borrowed"], report.token_cost["dedicated"]
    figures = {
        "Fleet cost (amortized)": report.amortized["total"],
        "What borrowing added to the bill (marginal)": report.marginal["total"],
        "Cash saved by borrowing (marginal)": report.savings.cash_saved,
        "Capacity avoided by borrowing (amortized, hypothetical)": report.savings.capacity_avoided,
        "A million rollout tokens, borrowed (amortized)": borrowed[AMORTIZED],
        "A million rollout tokens, dedicated (amortized)": dedicated[AMORTIZED],
        "Idle serving time put to work (harvest share)": report.harvest_share,
        "Leased, not used (idle time of serving devices under a lease)": report.leased_unused,
    }
    accepted = "Trajectories the verifier accepted: all, first step, last step"
    return Table(
        title="At a glance",
        stamp=report.stamp,
        columns=columns("what", "value", text=("value",)),
        header=False,
        rows=(
            *((name, figure.marked_text) for name, figure in figures.items()),
            (accepted, f"{first[0]}, {first[1]}, {last}"),
        ),
    )


def _ends(report: Report) -> tuple[tuple[str, str], str]:
    steps = list(report.accept_by_step.values())
    if not steps:
        return (report.factors["accept_rate"].text, "-"), "-"
    return (report.factors["accept_rate"].text, steps[0].text), steps[-1].text


def _views(report: Report) -> Table:
    rows: list[Row] = []
    for bucket, time in report.device_time.items():
        marginal = report.marginal["total"].text if bucket == "rollout" else "-"
        loaded = report.fully_loaded[bucket].text if bucket in report.fully_loaded else "-"
        share = report.device_share[bucket].text
        rows.append((bucket, time.text, share, report.amortized[bucket].text, loaded, marginal))
    marks: dict[int, Mark] = {
        number: "alarm"
        for number, (bucket, time) in enumerate(report.device_time.items())
        if bucket == "unaccounted" and time.value
    }
    for bucket, figure in report.amortized.items():
        if bucket not in report.device_time and bucket != "total" and figure.value:
            rows.append((bucket, "-", "-", figure.text, "-", "-"))
    total = (report.provisioned.text, "100.0%", report.amortized["total"].text, report.fully_loaded["total"].text, "-")
    return Table(
        title="Where the fleet's time and money went",
        view="three views, never added together",
        stamp=report.stamp,
        columns=columns("device time", "time", "share", AMORTIZED, FULLY_LOADED, MARGINAL),
        rows=tuple(rows),
        footer=(("fleet", *total),),
        marks=marks,
        notes=("Marginal is what lending added to the bill; it does not sum to the bill.",),
    )


def _runs(report: Report) -> Iterator[Table]:
    if not report.runs:
        return
    total = (report.provisioned.text, report.amortized["total"].text, report.fully_loaded["total"].text, "100.0%")
    yield Table(
        title="Who shared the fleet",
        view="two views, never added together",
        stamp=report.stamp,
        columns=columns("run", "name", "team", "device time", AMORTIZED, FULLY_LOADED, "share", text=("name", "team")),
        rows=tuple(
            (
                of_run.run_id,
                of_run.name,
                of_run.team or "-",
                of_run.time.text,
                of_run.amortized.text,
                of_run.fully_loaded.text,
                of_run.share.text,
            )
            for of_run in report.runs
        ),
        footer=(("fleet", "", "", *total),),
        notes=(
            "An RL run has the rollouts, syncs, activations and headroom of the engines that it was assigned, and its "
            "training; the fleet's own run has serving, idle time and what nobody reports.",
        ),
    )


def _borrow(report: Report) -> Table:
    costs = report.borrow.per_device_hour
    borrowed = f"{report.borrow.borrowed.text} borrowed"
    return Table(
        title="What a borrowed device-hour costs",
        view=MARGINAL,
        stamp=report.stamp,
        columns=columns("term", "per device-hour", "in all", "rests on", text=("rests on",)),
        rows=tuple(
            (term.replace("_", " "), costs[term].text, report.marginal[term].text, explained)
            for term, explained in report.borrow.explained.items()
        ),
        footer=(("total", costs["total"].text, report.marginal["total"].text, borrowed),),
        notes=(gate(report.borrow.idle_anyway),),
    )


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


def _savings(report: Report) -> Iterator[Element]:
    savings = report.savings
    figures = {"cash saved": savings.cash_saved}
    if savings.cash_saved_if:
        figures = {f"cash saved {which}": figure for which, figure in savings.cash_saved_if.items()}
    figures["capacity avoided (hypothetical)"] = savings.capacity_avoided
    yield Table(
        title="What borrowing saved",
        view="two figures, never added together",
        stamp=report.stamp,
        columns=columns("figure", "in all", "95% interval", "view", text=("view",)),
        rows=tuple((name, figure.marked_text, figure.short_interval, figure.view) for name, figure in figures.items()),
        notes=notes(why_no_interval(figures.values())),
    )
    rests_on = savings.rests_on.items()
    yield Paragraph.of_lines(f"{name.replace('_', ' ').capitalize()}: {why}." for name, why in rests_on)


def _token_cost(report: Report) -> Table:
    rows = []
    for placement, views in report.token_cost.items():
        tokens = report.tokens[placement]
        costs = (views[MARGINAL].marked_text, views[AMORTIZED].text, views[FULLY_LOADED].text)
        rows.append((f"{placement} devices", tokens["useful"].text, tokens["wasted_share"].text, *costs))
    unallocated = report.tokens["unallocated"]["generated"]
    return Table(
        title="A million useful rollout tokens",
        view="by view",
        stamp=report.stamp,
        columns=columns("made on", "useful tokens", "wasted", MARGINAL, AMORTIZED, FULLY_LOADED),
        rows=tuple(rows),
        notes=notes(
            "Marginal, dedicated: what the borrowed tokens would have added to the bill there.",
            f"{unallocated.text} tokens were made on a device that the ledger does not know: not priced."
            if unallocated.value
            else "",
        ),
    )


def _correct(report: Report) -> Table:
    factors = {name: figure.text for name, figure in report.factors.items()}
    return Table(
        title="Cost per correct answer, rollout tokens priced at",
        view="view by line",
        stamp=report.stamp,
        columns=columns(
            "price line",
            "view",
            "per accepted",
            "95% interval",
            "per audited correct",
            "hypothetical: formula, per M answer tokens",
            text=("view",),
        ),
        rows=tuple(
            (
                name,
                line.measured.view,
                line.measured.text,
                line.measured.short_interval,
                line.per_correct.text,
                line.formula.text,
            )
            for name, line in report.cost_per_correct.items()
        ),
        notes=notes(
            "The formula is hypothetical, at the list price of serving's tokens: "
            f"CPM {factors['cpm']} x R {factors['r']} x (1 + pi x rho {factors['rho']}) / alpha {factors['alpha']}; "
            f"borrowed share of useful tokens {factors['phi']}.",
            why_no_interval(line.measured for line in report.cost_per_correct.values()),
        ),
    )


def _latency(report: Report) -> Table:
    run, every = report.run, report.latency["all"]
    few = ", ".join(name for name, latency in report.latency.items() if latency.few_samples)
    return Table(
        title="Serving latency",
        view=f"trace {run.trace}, {_scales(run)}" if run.trace else "no trace",
        stamp=report.stamp,
        columns=columns("device", "requests", "missed budget", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
        rows=tuple(
            (name, latency.requests.text, latency.missed_budget.text, *_percentiles(latency))
            for name, latency in report.latency.items()
            if name != "all"
        ),
        footer=(
            ("all", every.requests.text, every.missed_budget.text, *_percentiles(every)),
            ("budget", "", "", "", every.ttft_budget.text, "", every.tpot_budget.text),
        ),
        notes=notes(f"Fewer than {P99_SAMPLES} samples ({few}): p99 is the largest value measured." if few else ""),
    )


def _percentiles(latency: Latency) -> tuple[str, str, str, str]:
    return latency.ttft_p50.text, latency.ttft_p99.text, latency.tpot_p50.text, latency.tpot_p99.text


def _events(report: Report) -> Table:
    leases, syncs = report.leases, report.syncs
    closings = ", ".join(f"{leases[key].text} {key}" for key in ("released", "preempted", "expired", "open"))
    rows = [("leases granted", leases["granted"].text, f"{closings}; {leases['leased'].text} leased")]
    for action, preempted in report.preemptions.items():
        kept, lost = preempted.tokens_kept.text, preempted.tokens_lost.text
        detail = f"requests: {preempted.requests.text}; tokens kept: {kept}, lost: {lost}"
        if action == "yield":
            detail = f"{preempted.waited.text} waited"
        rows.append((f"preemptions: {action}", preempted.count.text, detail))
    sent = f"{syncs.failed.text} failed, {syncs.wire.text} sent, dense over sent {syncs.dense_over_wire.text}"
    rows.append(("weight syncs", syncs.count.text, sent))
    if report.engines.ends:
        first, *more = _ends_of_engines(report.engines)
        rows.append(("engine restarts", report.engines.restarts.text, first))
        rows += [("", "", line) for line in more]
    return Table(
        title="Leases, preemptions, syncs",
        view="counts",
        stamp=report.stamp,
        columns=columns("what", "how many", "detail", text=("detail",)),
        rows=tuple(rows),
    )


def _ends_of_engines(engines: Engines) -> list[str]:
    lines = [
        f"{end.engine_id} {'died' if end.ended else 'was back'} at {end.ended or end.restarted} "
        f"({end.reason})" + ("" if end.restarted else ", not started again")
        for end in engines.ends[:_ENDS_MAX]
    ]
    more = len(engines.ends) - _ENDS_MAX
    return [*lines, *([f"and {more} more: `--json` has all"] if more > 0 else [])]
