"""What a correct answer of one run cost, as a document: price lines, C3 with its interval, levers, and a breakdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rose.pricing.answers import breakdown, cost_per_correct, levers
from rose.pricing.answers.breakdown import By, Part
from rose.pricing.answers.cost_per_correct import Resamples
from rose.pricing.answers.levers import Lever, Move
from rose.pricing.document import PriceLine, RunFacts, to_json
from rose.pricing.figures import AMORTIZED, BLENDED, BookFacts, Figure, Stamp
from rose.pricing.run import price_lines
from rose.pricing.run.priced import PricedRun
from rose.pricing.stats import bootstrap

_PER = "million answer tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeverRow:
    """One lever of C3. `tenth_*` is the move by a tenth, `error_*` that by one bootstrap standard error: to what, and
    the dollars it saves on a million answer tokens."""

    name: str
    what: str
    value: Figure
    derivative: Figure
    elasticity: Figure
    tenth_to: Figure
    tenth_saves: Figure
    standard_error: Figure
    error_to: Figure
    error_saves: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRow:
    """One row of a breakdown; the rows sum to the run's dollars and accepted trajectories."""

    key: str
    cost: Figure
    accepted: Figure
    per_accepted: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What `rose correct show` shows."""

    stamp: Stamp
    run: RunFacts
    price_book: BookFacts
    #: cpm, r, rho, alpha, accept_rate, phi, ppv.
    factors: Mapping[str, Figure]
    #: By price line.
    lines: Mapping[str, PriceLine]
    #: CPM * R * (1 + pi * rho) / alpha at the prices rollout tokens really had, and the same over PPV.
    c3: Figure
    c3_per_correct: Figure
    #: The one that saves most first; empty where C3 is not known.
    levers: tuple[LeverRow, ...]
    in_words: str
    by: By | None
    parts: tuple[PartRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; amounts are whole nano-dollars."""
        return to_json(self)


def answers(run: PricedRun, by: By | None = None) -> Answers:
    """The document of a run, with a breakdown if `by` names one."""
    drawn = cost_per_correct.resample(run.groups)
    ranked, words = _levers(run, drawn)
    c3, c3_per_correct = price_lines.c3(run, drawn)
    return Answers(
        stamp=run.stamp,
        run=run.run,
        price_book=run.book_facts,
        factors=price_lines.factors(run, drawn),
        lines=price_lines.price_lines(run, drawn),
        c3=c3,
        c3_per_correct=c3_per_correct,
        levers=ranked,
        in_words=words,
        by=by,
        parts=_parts(run, breakdown.by(run.connection, run.run.run_id, by, run.cost)) if by else (),
    )


def _levers(run: PricedRun, drawn: Resamples | None) -> tuple[tuple[LeverRow, ...], str]:
    at = levers.factors(run.cpm_usd, run.cost, run.tokens, run.groups)
    if at is None or not at.cost:
        return (), "No lever can be weighed: a factor of C3 is not known, or C3 is nothing."
    ranked = levers.levers(at, levers.standard_errors(drawn, run.groups, at))
    return tuple(_lever(run, lever) for lever in ranked), levers.in_words(ranked)


def _lever(run: PricedRun, lever: Lever) -> LeverRow:
    unit = "share" if lever.name in ("alpha", "phi", "waste") else "ratio"
    no_error = "does not apply: a price" if lever.name == "cpm" else "none: it did not vary between groups"

    def value(amount: float | None, why: str | None = None) -> Figure:
        if lever.name != "cpm":
            return run.number(amount, unit, why=why)
        usd = None if amount is None else Fraction(amount)
        return run.make.money(usd, AMORTIZED, per="million tokens", basis="price book", why=why)

    def saves(move: Move | None) -> Figure:
        usd = None if move is None else Fraction(bootstrap.rounded(move.saves))
        return run.make.money(usd, BLENDED, per=_PER, basis="price book", why=no_error)

    return LeverRow(
        name=lever.name,
        what=levers.WORDS[lever.name],
        value=value(lever.value),
        derivative=run.make.money(Fraction(lever.derivative), BLENDED, per=f"{_PER}/{lever.name}", basis="price book"),
        elasticity=run.number(bootstrap.rounded(lever.elasticity)),
        tenth_to=value(lever.tenth.to),
        tenth_saves=saves(lever.tenth),
        standard_error=value(lever.standard_error, no_error),
        error_to=value(None if lever.error is None else lever.error.to, no_error),
        error_saves=saves(lever.error),
    )


def _parts(run: PricedRun, parts: tuple[Part, ...]) -> tuple[PartRow, ...]:
    return tuple(
        PartRow(
            key=part.key,
            cost=run.make.amount(part.cost_nano_usd, BLENDED),
            accepted=run.make.number(part.accepted, "trajectories"),
            per_accepted=run.make.money(
                part.usd_per_accepted,
                BLENDED,
                per="accepted trajectory",
                why="does not apply: belongs to no row"
                if part.key == breakdown.UNALLOCATED
                else "not enough data: nothing was accepted",
                interval=part.interval if part.usd_per_accepted is not None else None,
                no_interval=run.cost.no_interval("blended") or bootstrap.TOO_FEW,
            ),
        )
        for part in parts
    )
