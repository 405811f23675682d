"""What people said of anomalies: expected, unexpected, or that the figure is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from rose.clock import iso
from rose.pricing.annotations import record
from rose.pricing.money import PricingError

JUDGED, WITHDRAWN = "anomaly_judged", "anomaly_judgement_withdrawn"
#: `expected`: it was meant to be so, and is not alerted on; `wrong`: the figure itself is not right.
Verdict = Literal["expected", "unexpected", "wrong"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_NEEDS = {JUDGED: ("provenance", "date", "metric", "verdict", "reason"), WITHDRAWN: ("provenance", "date", "metric")}
_REASON_CHARACTERS_MAX = 500


class Subject(NamedTuple):
    """Which anomaly: the figure of a UTC day."""

    provenance: str
    day: date
    metric: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The last word on an anomaly, by whom and when (UTC microseconds)."""

    verdict: Verdict
    reason: str
    by: str
    at_us: int

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.verdict} ({self.by}, {iso(self.at_us)[:10]}): {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "reason": self.reason, "by": self.by, "at": iso(self.at_us)}


def load(root: Path) -> Mapping[Subject, Judgement]:
    """What holds of each anomaly that somebody judged. Raises LedgerError."""
    known: dict[Subject, Judgement] = {}
    for action, detail in record.read(root, _NEEDS):
        subject = Subject(detail["provenance"], date.fromisoformat(detail["date"]), detail["metric"])
        known.pop(subject, None)
        if action == JUDGED:
            known[subject] = Judgement(**{name: detail[name] for name in ("verdict", "reason", "by", "at_us")})
    return known


def judge(root: Path, subject: Subject, verdict: str, reason: str, *, by: str | None = None) -> Judgement:
    """Say what an anomaly is; the last word holds. Raises PricingError for another verdict, no reason; LedgerError."""
    if verdict not in VERDICTS:
        raise PricingError(f"{verdict!r} is no verdict; give {', '.join(VERDICTS)}")
    detail = _detail(subject) | {"verdict": verdict, "reason": _reason(reason)}
    with record.changing(root) as folder:
        record.append(folder, JUDGED, detail, by=by)
        return load(folder)[subject]


def withdraw(root: Path, subject: Subject, reason: str, *, by: str | None = None) -> Judgement:
    """Take the last word on an anomaly back; returns it. Raises PricingError where there is none, LedgerError."""
    reason = _reason(reason)
    with record.changing(root) as folder:
        known = load(folder)
        if subject not in known:
            raise PricingError(f"nobody judged {subject.metric} of {subject.day} ({subject.provenance})")
        record.append(folder, WITHDRAWN, _detail(subject) | {"reason": reason}, by=by)
    return known[subject]


def _detail(subject: Subject) -> dict[str, str]:
    return {"provenance": subject.provenance, "date": str(subject.day), "metric": subject.metric}


def _reason(text: str) -> str:
    return record.one_line("reason", text, _REASON_CHARACTERS_MAX)
