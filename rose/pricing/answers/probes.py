"""A probe is a verifier's verdict on an answer that is known to be correct or wrong. Probes come from a CSV or Parquet
file, or from the verdicts in the ledger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from rose.pricing.money import PricingError

_COLUMNS = ("probe", "verifier", "probability", "correct", "accepted")
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_FAULTS_MAX = 10  #: Faults of a file that an error names.


@dataclass(frozen=True, slots=True)
class Probe:
    probe: str
    verifier: str
    probability: float  #: The verifier's probability that the answer is correct, 0 to 1.
    correct: bool
    accepted: bool
    group: str  #: Probes of one group share a task; by default a probe is its own group.


def from_file(path: Path) -> list[Probe]:
    """Return the probes in a CSV or Parquet file. Raises PricingError for a file or rows that cannot be used."""
    frame = _read(path)
    if set(frame.columns) != set(_COLUMNS):
        raise PricingError(
            f"probes {path} must have the columns {', '.join(_COLUMNS)}; it has {', '.join(frame.columns) or 'none'}"
        )
    faults, rows = [], []
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        values: dict[str, Any] = {name: _TRUTHS.get(row[name].lower()) for name in ("correct", "accepted")}
        values["probability"] = _probability(row["probability"])
        wrong = [f"{name} {row[name]!r}" for name in _COLUMNS if values.get(name, row[name]) in (None, "")]
        if wrong:
            faults.append(f"row {number}: {', '.join(wrong)} cannot be used")
        else:
            rows.append({"where": f"row {number}", **row, "group": row["probe"], **values})
    return _checked(f"probes {path}", rows, faults)


def from_ledger(records: Iterable[Mapping[str, Any]]) -> list[Probe]:
    """Return probes from rows of `sql/answers/probes.sql`. Raises PricingError for an invalid reward."""
    rows = [{**row, "where": f"trajectory {row['probe']}", "group": row["group_id"]} for row in records]
    faults = [
        f"{row['where']}: reward {row['reward']!r} of verifier {row['verifier']!r} is not a probability from 0 to 1"
        for row in rows
        if row["reward"] is None or not 0 <= row["reward"] <= 1
    ]
    return _checked("verdicts of the ledger", [row | {"probability": row["reward"]} for row in rows], faults)


def _probability(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 1 else None  # Not a number fails the comparison too.


def _checked(source: str, rows: Iterable[Mapping[str, Any]], faults: list[str]) -> list[Probe]:
    """Return the probes in `rows`. Raises PricingError if `faults` lists any, if a verifier has two verdicts on one
    probe, or if a probe is `correct` in one row and wrong in another."""
    probes: list[Probe] = []
    seen: dict[tuple[str, str], str] = {}
    truth: dict[str, tuple[bool, str]] = {}
    for row in rows:
        where, probe = row["where"], Probe(**{name: row[name] for name in Probe.__slots__})
        first = seen.setdefault((probe.probe, probe.verifier), where)
        if first != where:
            faults.append(f"{where}: probe {probe.probe!r} of verifier {probe.verifier!r} is already at {first}")
        known, at = truth.setdefault(probe.probe, (probe.correct, where))
        if known != probe.correct:
            faults.append(f"{where}: `correct` of probe {probe.probe!r} differs from that at {at}")
        probes.append(probe)
    if faults:
        more = f"\n  and {len(faults) - _FAULTS_MAX:,} more" if len(faults) > _FAULTS_MAX else ""
        lines = "\n".join(f"  {fault}" for fault in faults[:_FAULTS_MAX])
        raise PricingError(f"{source} cannot be used:\n{lines}{more}")
    return probes


def _read(path: Path) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path) if path.suffix.lower() == ".parquet" else pl.read_csv(path, infer_schema=False)
        return frame.select(pl.all().cast(pl.String).str.strip_chars().fill_null(""))
    except pl.exceptions.NoDataError:
        return pl.DataFrame()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PricingError(f"cannot read probes {path}: {error}") from None
