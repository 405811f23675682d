"""The documents of a correct answer's cost as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rose.clock import utc
from rose.pricing.answers.report.cost_per_correct import Answers
from rose.pricing.answers.report.frontier import FREE, Outlook
from rose.pricing.answers.report.verifiers import Procurement
from rose.pricing.document import RunFacts
from rose.pricing.figures import BLENDED, Figure, Stamp, why_no_interval
from rose.pricing.run.tables import WIDTH

_FACTORS = {
    "cpm": "price of a million serving tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "rho": "rollouts beyond the one that is kept (rho)",
    "alpha": "share of groups with an accepted answer (alpha)",
    "accept_rate": "share of single trajectories accepted",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "ppv": "correct among audited accepted ones (PPV)",
}
_ELASTICITIES = {
    "n": "rollouts for each answer (n)",
    "eta_n": "elasticity of alpha in rollouts (eta_n)",
    "independent": "the same, if tries were independent",
    "eta_t": "elasticity of alpha in training (eta_T)",
    "left": "(eta_n - 1) / eta_T",
}
_SPEND = {
    "inference": "inference: time spent serving (D_I)",
    "training": "training, rollouts at the dedicated price (D_T)",
    "training_with_borrowing": "training, as it was paid for (D_T')",
    "psi": "rollouts' share of training (psi)",
    "phi": "borrowed share of rollout tokens (phi)",
    "cost_ratio": "borrowed over dedicated price of a token (c_O / c_D)",
    "threshold": "threshold with two price lines (D_I / D_T)",
    "kappa3": "threshold with three (kappa3)",
}


def answer_tables(of: Answers) -> Iterable[RenderableType]:
    """What `rose correct show` prints, in order."""
    yield _heading(of.run, of.stamp)
    measured = _table(
        of.stamp, "Measured: dollars over trajectories", "view by line",
        "rollout tokens priced at", "view", "per accepted", "95%", "per correct", "95%",
    )  # fmt: skip
    formula = _table(
        of.stamp, "Hypothetical, at list price: CPM x R x (1 + pi x rho) / alpha, per million answer tokens",
        "view by line",
        "rollout tokens priced at", "a million of them", "pi", "cost", "95%",
    )  # fmt: skip
    for name, line in of.lines.items():
        _row(
            measured, name, line.measured.view, line.measured.text, _interval(line.measured), line.per_correct.text,
            _interval(line.per_correct),
        )  # fmt: skip
        _row(formula, name, line.token_cost.text, line.pi.text, line.formula.text, _interval(line.formula))
    measured.caption = why_no_interval(line.measured for line in of.lines.values())
    yield measured
    yield formula
    factors = _table(
        of.stamp, "C3 = CPM x R x (1 + pi x rho) / alpha, hypothetical: at list price", BLENDED, "what", "value", "95%"
    )
    for name, what in _FACTORS.items():
        _row(factors, what, of.factors[name].text, _interval(of.factors[name]))
    factors.add_section()
    _row(factors, "C3, per million answer tokens", of.c3.text, _interval(of.c3), style="bold")
    _row(factors, "C3 / PPV, per million correct ones", of.c3_per_correct.text, _interval(of.c3_per_correct))
    yield factors
    if of.levers:
        levers = _table(
            of.stamp, "Which lever moves it most, dollars per million answer tokens", BLENDED,
            "lever", "value", "elasticity", "a tenth: to", "saves", "one standard error: to", "saves",
        )  # fmt: skip
        for lever in of.levers:
            _row(
                levers, lever.what, lever.value.text, lever.elasticity.text, lever.tenth_to.text,
                lever.tenth_saves.text, lever.error_to.text, _dash(lever.error_saves),
            )  # fmt: skip
        levers.caption = "Each moves alone. With fewer rollouts alpha falls too: `rose correct frontier` weighs that."
        yield levers
    yield Text(of.in_words)
    if of.by:
        parts = _table(of.stamp, f"By {of.by}", BLENDED, of.by, "cost", "accepted", "per accepted", "95%")
        for part in of.parts:
            _row(
                parts,
                part.key,
                part.cost.text,
                part.accepted.text,
                part.per_accepted.text,
                _interval(part.per_accepted),
            )
        parts.add_section()
        cost = sum(int(part.cost.value or 0) for part in of.parts)
        accepted = sum(int(part.accepted.value or 0) for part in of.parts)
        total = Figure(value=cost, unit="nano_usd", view=BLENDED, stamp=of.stamp)
        whole = of.lines["blended"].measured
        _row(parts, "run", total.text, f"{accepted:,}", whole.text, _interval(whole), style="bold")
        yield parts


def outlook_tables(of: Outlook) -> Iterable[RenderableType]:
    """What `rose correct frontier` prints, in order."""
    yield _heading(of.run, of.stamp)
    eta = _table(of.stamp, "How alpha grows", "elasticities", "what", "value", "95%", "rests on")
    for name, what in _ELASTICITIES.items():
        figure = of.elasticities[name]
        rests_on = of.rests_on.get(name, "") if figure.value is not None else figure.text
        _row(eta, what, _dash(figure), _interval(figure), rests_on)
    eta.caption = why_no_interval(of.elasticities.values())
    yield eta
    spend = _table(of.stamp, "What was spent on either side", "view by row", "what", "value", "view")
    for name, what in _SPEND.items():
        figure = of.spend[name]
        _row(spend, what, _dash(figure), figure.view if figure.unit == "nano_usd" else "")
    yield spend
    if reasons := dict.fromkeys(figure.text for figure in of.spend.values() if figure.value is None):
        yield Text("\n".join(reasons))
    answers = _table(
        of.stamp, "Where the next one belongs", "relative fall in cost per correct",
        "priced by", "inference", "training", "difference, 95%", "answer",
    )  # fmt: skip
    for name, answer in of.answers.items():
        per = "per slack second" if name == FREE else "per dollar"
        gains = _dash(answer.gain_inference), _dash(answer.gain_training)
        _row(answers, f"{name}\n{per}", *gains, _interval(answer.difference), answer.says)
    yield answers
    yield Text(of.rollouts)


def procurement_tables(of: Procurement) -> Iterable[RenderableType]:
    """What `rose correct verifiers` prints, in order."""
    yield _heading(of.run, of.stamp)
    scores = _table(
        of.stamp,
        "How well each reports probabilities",
        of.probes,
        "verifier",
        "saw",
        "scored on",
        "Brier",
        "logarithmic",
    )
    murphy = _table(
        of.stamp, "Brier = reliability - resolution + uncertainty + within bins", of.probes,
        "verifier", "reliability", "resolution", "uncertainty", "within bins",
    )  # fmt: skip
    for v in of.verifiers:
        _row(scores, v.name, v.saw.text, v.probes.text, v.brier.text, v.logarithmic.text)
        _row(murphy, v.name, v.reliability.text, v.resolution.text, v.uncertainty.text, v.within_bins.text)
    scores.caption = "0 is best for both."
    murphy.caption = "Reliability: 0 is best. Resolution: more is better."
    yield scores
    yield murphy
    costs = _table(
        of.stamp, "What a correct answer costs with each", BLENDED,
        "verifier", "accepts", "TPR", "FPR", "PPV", "a verdict", "per correct", "95%", "cheapest in",
    )  # fmt: skip
    for v in of.verifiers:
        _row(
            costs, v.name, v.accept_rate.text, v.tpr.text, v.fpr.text, v.ppv.text, _dash(v.price), _dash(v.per_correct),
            _interval(v.per_correct), _dash(v.chance_cheapest),
        )  # fmt: skip
    costs.caption = f"Before its verdict a judged trajectory cost {of.per_trajectory.text}. " + why_no_interval(
        v.per_correct for v in of.verifiers
    )
    yield costs
    if reasons := dict.fromkeys(f.text for v in of.verifiers for f in (v.price, v.per_correct) if f.value is None):
        yield Text("\n".join(reasons))
    calibration = _table(
        of.stamp, "Calibration", "reported against what came true",
        "verifier", "reported in", "probes", "mean report", "correct",
    )  # fmt: skip
    for v in of.verifiers:
        for row in v.calibration:
            within = f"{row.low:.1f} to {row.high:.1f}"
            _row(calibration, v.name, within, row.probes.text, row.reported.text, row.correct.text)
    yield calibration
    yield Text(of.in_words)


def _heading(run: RunFacts, stamp: Stamp) -> Text:
    return Text(
        f"Run {run.name} ({run.run_id}), {run.status}, {stamp.provenance}\n"
        f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}\n"
        f"{stamp.book.line}"
    )


def _table(stamp: Stamp, title: str, view: str, *columns: str) -> Table:
    table = Table(
        title=f"{title}  [{view}; {stamp}]".replace("[", "\\["),
        title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, width=WIDTH,
    )  # fmt: skip
    for index, column in enumerate(columns):
        prose = index == 0 or column in ("rests on", "answer", "view")
        table.add_column(column, justify="left" if prose else "right", overflow="fold")
    return table


def _row(table: Table, *cells: str, style: str | None = None) -> None:
    # As text: a name may hold brackets, which rich would take for markup.
    table.add_row(*map(Text, cells), style=style)


def _dash(figure: Figure) -> str:
    """For a narrow column, where the reason there is none stands elsewhere."""
    return figure.text if figure.value is not None else "-"


def _interval(figure: Figure) -> str:
    return figure.interval_text or "-"
