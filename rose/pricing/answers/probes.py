"""Probes: answers whose truth is known, and what each verifier reported of them. From a file, or from a ledger.

A file is CSV or Parquet with the columns `probe`, `verifier`, `probability` (0 to 1, that the answer is correct),
`correct` and, if it has decisions, `accepted` (true or false, 1 or 0). In a ledger the probes are the trajectories
whose truth is recorded, and a verdict's reward is read as the probability the verifier reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rose.pricing.money import PricingError

#: Accepted from this probability on, in a file without decisions.
THRESHOLD = 0.5

_NEEDED = ("probe", "verifier", "probability", "correct")
_OPTIONAL = ("accepted",)
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
#: Problems of a file that are told at once.
_TOLD = 10


@dataclass(frozen=True, slots=True)
class Probe:
    """What one verifier reported of one answer."""

    probe: str
    verifier: str
    #: That the answer is correct, in the verifier's eyes: 0 to 1.
    probability: float
    correct: bool
    accepted: bool
    #: What shares a task with others; a probe by itself is a group of its own.
    group: str


def from_file(path: Path, threshold: float | None = None) -> list[Probe]:
    """Probes of a CSV or Parquet file; without an `accepted` column, accepted are those from `threshold` on (0.5).

    Raises PricingError for a file that cannot be read, lacks a column or has one of another name, and for every row
    that cannot be used, with its number, field and value.
    """
    frame = _read(path)
    columns = frame.columns
    if missing := [name for name in _NEEDED if name not in columns]:
        raise PricingError(
            f"probes {path} has no column {', '.join(missing)} (it has {', '.join(map(str, columns)) or 'none'}); "
            f"it needs {', '.join(_NEEDED)}"
        )
    if other := [str(name) for name in columns if name not in (*_NEEDED, *_OPTIONAL)]:
        raise PricingError(
            f"probes {path}: column {', '.join(other)} is not known; the columns are {', '.join(_NEEDED)} and, if the "
            f"file has decisions, {_OPTIONAL[0]}"
        )
    decided = "accepted" in columns
    if decided and threshold is not None:
        raise PricingError(f"probes {path} has a column accepted, so there is nothing for --threshold to decide")
    limit = THRESHOLD if threshold is None else threshold
    if not 0 <= limit <= 1:
        raise PricingError(f"--threshold {limit} is no probability; give one from 0 to 1")
    rows = enumerate(frame.iter_rows(named=True), start=1)
    return _checked(f"probes {path}", (_row(f"row {n}", row, None if decided else limit) for n, row in rows))


def from_ledger(records: Iterable[Mapping[str, Any]]) -> list[Probe]:
    """Probes from the rows of `sql/answers/probes.sql`.

    Raises PricingError for a reward that is no probability.
    """
    return _checked("verdicts of the ledger", (_verdict(row) for row in records))


def _verdict(row: Mapping[str, Any]) -> tuple[str, Probe | str]:
    where, reward = f"trajectory {row['probe']}", row["reward"]
    if reward is None or not 0 <= reward <= 1:
        return where, f"{where}: reward {reward!r} of verifier {row['verifier']!r} is no probability from 0 to 1"
    return where, Probe(
        probe=row["probe"],
        verifier=row["verifier"],
        probability=reward,
        correct=row["correct"],
        accepted=row["accepted"],
        group=row["group_id"],
    )


def _row(where: str, row: Mapping[str, Any], limit: float | None) -> tuple[str, Probe | str]:
    """The probe of a row, or what is wrong with it."""
    wrong = []
    for name in ("probe", "verifier"):
        if not row[name]:
            wrong.append(f"{name} is missing")
    probability = _probability(row["probability"])
    if isinstance(probability, str):
        wrong.append(f"probability {probability}")
    truths = {}
    for name in ("correct",) if limit is not None else ("correct", "accepted"):
        truths[name] = _TRUTHS.get(row[name].lower())
        if truths[name] is None:
            wrong.append(f"{name} {row[name]!r} is neither true nor false" if row[name] else f"{name} is missing")
    if wrong:
        return where, f"{where}: {', '.join(wrong)}"
    assert isinstance(probability, float)
    return where, Probe(
        probe=row["probe"],
        verifier=row["verifier"],
        probability=probability,
        correct=bool(truths["correct"]),
        accepted=bool(truths["accepted"]) if limit is None else probability >= limit,
        group=row["probe"],
    )


def _probability(text: str) -> float | str:
    if not text:
        return "is missing"
    try:
        value = float(text)
    except ValueError:
        return f"{text!r} is no number"
    # Not a number fails the comparison too.
    return value if 0 <= value <= 1 else f"{text} is not from 0 to 1"


def _checked(source: str, records: Iterable[tuple[str, Probe | str]]) -> list[Probe]:
    """The probes in the order of the file, if nothing is wrong with any of them, alone or beside the others."""
    probes: list[Probe] = []
    problems: list[str] = []
    seen: dict[tuple[str, str], str] = {}
    truth: dict[str, tuple[bool, str]] = {}
    for where, probe in records:
        if isinstance(probe, str):
            problems.append(probe)
            continue
        first = seen.setdefault((probe.probe, probe.verifier), where)
        if first != where:
            problems.append(f"{where}: probe {probe.probe!r} of verifier {probe.verifier!r} was there at {first}")
        known, at = truth.setdefault(probe.probe, (probe.correct, where))
        if known != probe.correct:
            problems.append(
                f"{where}: correct is {str(probe.correct).lower()} for probe {probe.probe!r} and {str(known).lower()} "
                f"at {at}: a probe has one truth"
            )
        probes.append(probe)
    if problems:
        more = f"\n  and {len(problems) - _TOLD:,} more" if len(problems) > _TOLD else ""
        lines = "\n".join(f"  {problem}" for problem in problems[:_TOLD])
        raise PricingError(f"{source} cannot be used:\n{lines}{more}")
    return probes


def _read(path: Path) -> pl.DataFrame:
    """Return the file's rows as text, without blanks around it; missing is empty."""
    try:
        frame = pl.read_parquet(path) if path.suffix.lower() == ".parquet" else pl.read_csv(path, infer_schema=False)
        return frame.select(pl.all().cast(pl.String).str.strip_chars().fill_null(""))
    except pl.exceptions.NoDataError:
        return pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PricingError(f"cannot read probes {path}: {error}") from None
