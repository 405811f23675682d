"""The documents of a correct answer's cost as tables, each with its view, currency and provenance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rose.pricing.answers.report.cost_per_correct import Answers
from rose.pricing.answers.report.frontier import FREE, Outlook
from rose.pricing.answers.report.verifiers import Procurement
from rose.pricing.document import heading
from rose.pricing.figures import BLENDED, Figure, why_no_interval
from rose.pricing.table import Element, Paragraph, Table, columns, notes

#: The factors of C3 in words.
FACTORS = {
    "cpm": "price of a million serving tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "rho": "rollouts beyond the one that is kept (rho)",
    "alpha": "share of groups with an accepted answer (alpha)",
    "accept_rate": "share of single trajectories accepted",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "ppv": "correct among audited accepted ones (PPV)",
}
ELASTICITIES = {
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


def answer_tables(document: Answers) -> Iterator[Element]:
    """What `rose correct show` shows, in order."""
    stamp = document.stamp
    yield heading(document.run, stamp)
    yield from _lines(document)
    yield Table(
        title="C3 = CPM x R x (1 + pi x rho) / alpha, hypothetical: at list price",
        view=BLENDED,
        stamp=stamp,
        columns=columns("what", "value", "95%"),
        rows=tuple(_row(words, document.factors[name]) for name, words in FACTORS.items()),
        footer=(
            _row("C3, per million answer tokens", document.c3),
            _row("C3 / PPV, per million correct ones", document.c3_per_correct),
        ),
    )
    if document.levers:
        yield levers(document)
    yield Paragraph(document.in_words)
    if document.by:
        yield _parts(document, document.by)


def levers(document: Answers) -> Table:
    """What each factor moved alone would save, the one that moves most first."""
    return Table(
        title="Which lever moves it most, dollars per million answer tokens",
        view=BLENDED,
        stamp=document.stamp,
        columns=columns(
            "lever", "value", "elasticity", "a tenth better", "saves", "one standard error better", "saves then"
        ),
        rows=tuple(
            (
                lever.what,
                lever.value.text,
                lever.elasticity.text,
                lever.tenth_to.text,
                lever.tenth_saves.text,
                lever.error_to.text,
                lever.error_saves.short_text,
            )
            for lever in document.levers
        ),
        notes=("Each moves alone. With fewer rollouts alpha falls too: `rose correct frontier` weighs that.",),
    )


def _lines(document: Answers) -> Iterator[Table]:
    """The price lines, as measured and as the formula has them."""
    priced_at = "rollout tokens priced at"
    yield Table(
        title="Measured: dollars over trajectories",
        view="view by line",
        stamp=document.stamp,
        columns=columns(priced_at, "view", "per accepted", "95%", "per correct", "95%", text=("view",)),
        rows=tuple(
            (
                name,
                line.measured.view,
                line.measured.text,
                line.measured.short_interval,
                line.per_correct.text,
                line.per_correct.short_interval,
            )
            for name, line in document.lines.items()
        ),
        notes=notes(why_no_interval(line.measured for line in document.lines.values())),
    )
    yield Table(
        title="Hypothetical, at list price: CPM x R x (1 + pi x rho) / alpha, per million answer tokens",
        view="view by line",
        stamp=document.stamp,
        columns=columns(priced_at, "a million of them", "pi", "cost", "95%"),
        rows=tuple(
            (name, line.token_cost.text, line.pi.text, line.formula.text, line.formula.short_interval)
            for name, line in document.lines.items()
        ),
    )


def _parts(document: Answers, by: str) -> Table:
    """What the run is divided into, and the run."""
    cost = sum(int(part.cost.value or 0) for part in document.parts)
    accepted = sum(int(part.accepted.value or 0) for part in document.parts)
    total = Figure(value=cost, unit="nano_usd", view=BLENDED, stamp=document.stamp)
    whole = document.lines["blended"].measured
    return Table(
        title=f"By {by}",
        view=BLENDED,
        stamp=document.stamp,
        columns=columns(by, "cost", "accepted", "per accepted", "95%"),
        rows=tuple(
            (part.key, part.cost.text, part.accepted.text, part.per_accepted.text, part.per_accepted.short_interval)
            for part in document.parts
        ),
        footer=(("run", total.text, f"{accepted:,}", whole.text, whole.short_interval),),
    )


def outlook_tables(document: Outlook) -> Iterator[Element]:
    """What `rose correct frontier` shows, in order."""
    stamp = document.stamp
    yield heading(document.run, stamp)
    rows = []
    for name, words in ELASTICITIES.items():
        figure = document.elasticities[name]
        rests_on = figure.text if figure.value is None else document.rests_on.get(name, "")
        rows.append((words, figure.short_text, figure.short_interval, rests_on))
    yield Table(
        title="How alpha grows",
        view="elasticities",
        stamp=stamp,
        columns=columns("what", "value", "95%", "rests on", text=("rests on",)),
        rows=tuple(rows),
        notes=notes(why_no_interval(document.elasticities.values())),
    )
    spend = {words: document.spend[name] for name, words in _SPEND.items()}
    yield Table(
        title="What was spent on either side",
        view="view by row",
        stamp=stamp,
        columns=columns("what", "value", "view", text=("view",)),
        rows=tuple(
            (words, figure.short_text, figure.view if figure.unit == "nano_usd" else "")
            for words, figure in spend.items()
        ),
    )
    yield from _reasons(document.spend.values())
    yield Table(
        title="Where the next one belongs",
        view="relative fall in cost per correct",
        stamp=stamp,
        columns=columns("priced by", "inference", "training", "difference, 95%", "answer", text=("answer",)),
        rows=tuple(
            (
                f"{name}, per {'slack second' if name == FREE else 'dollar'}",
                answer.gain_inference.short_text,
                answer.gain_training.short_text,
                answer.difference.short_interval,
                answer.says,
            )
            for name, answer in document.answers.items()
        ),
    )
    yield Paragraph(document.rollouts)


def procurement_tables(document: Procurement) -> Iterator[Element]:
    """What `rose correct verifiers` shows, in order."""
    stamp, verifiers = document.stamp, document.verifiers
    yield heading(document.run, stamp)
    yield Table(
        title="How well each reports probabilities",
        view=document.probes,
        stamp=stamp,
        columns=columns("verifier", "saw", "scored on", "Brier", "logarithmic"),
        rows=tuple((v.name, v.saw.text, v.probes.text, v.brier.text, v.logarithmic.text) for v in verifiers),
        notes=("0 is best for both.",),
    )
    yield Table(
        title="Brier = reliability - resolution + uncertainty + within bins",
        view=document.probes,
        stamp=stamp,
        columns=columns("verifier", "reliability", "resolution", "uncertainty", "within bins"),
        rows=tuple(
            (v.name, v.reliability.text, v.resolution.text, v.uncertainty.text, v.within_bins.text) for v in verifiers
        ),
        notes=("Reliability: 0 is best. Resolution: more is better.",),
    )
    yield Table(
        title="What a correct answer costs with each",
        view=BLENDED,
        stamp=stamp,
        columns=columns("verifier", "accepts", "TPR", "FPR", "PPV", "a verdict", "per correct", "95%", "cheapest in"),
        rows=tuple(
            (
                v.name,
                v.accept_rate.text,
                v.tpr.text,
                v.fpr.text,
                v.ppv.text,
                v.price.short_text,
                v.per_correct.short_text,
                v.per_correct.short_interval,
                v.chance_cheapest.short_text,
            )
            for v in verifiers
        ),
        notes=notes(
            f"Before its verdict a judged trajectory cost {document.per_trajectory.text}.",
            why_no_interval(v.per_correct for v in verifiers),
        ),
    )
    yield from _reasons(figure for v in verifiers for figure in (v.price, v.per_correct))
    yield Table(
        title="Calibration",
        view="reported against what came true",
        stamp=stamp,
        columns=columns("verifier", "reported in", "probes", "mean report", "correct"),
        rows=tuple(
            (v.name, f"{row.low:.1f} to {row.high:.1f}", row.probes.text, row.reported.text, row.correct.text)
            for v in verifiers
            for row in v.calibration
        ),
        grouped=True,
    )
    yield Paragraph(document.in_words)


def _row(words: str, figure: Figure) -> tuple[str, str, str]:
    return words, figure.text, figure.short_interval


def _reasons(figures: Iterable[Figure]) -> Iterator[Paragraph]:
    """Why some of them are not known, if any."""
    if reasons := dict.fromkeys(figure.text for figure in figures if figure.value is None):
        yield Paragraph.of_lines(reasons)
