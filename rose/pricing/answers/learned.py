"""A policy learned if its accepted share is higher at the end of a run than at the beginning, and the Wilson intervals
of the two shares do not overlap. Both ends have `GROUPS_MIN` judged groups, but at most a quarter of the run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from rose.pricing.stats.uncertainty import Clusters, share_interval

GROUPS_MIN = 30  #: Judged groups that make an end of a run long enough.
Verdict = Literal["learned", "got worse", "cannot tell"]
_ENDS = ("first", "last")


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    first: int
    last: int
    judged: int
    accepted: int
    groups: int
    yy: int  #: Sum over groups of accepted * accepted.
    yx: int  #: Sum over groups of accepted * judged.
    xx: int  #: Sum over groups of judged * judged.

    def __post_init__(self) -> None:
        assert self.first <= self.last
        assert 0 <= self.accepted <= self.judged
        assert 0 < self.groups <= self.judged

    @property
    def share(self) -> Fraction:
        return Fraction(self.accepted, self.judged)

    @property
    def interval(self) -> tuple[float, float]:
        return share_interval(self.accepted, self.judged, Clusters(self.groups, self.yy, self.yx, self.xx))

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{float(self.share):.1%} (95% {low:.1%} to {high:.1%})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    begin: Stretch
    end: Stretch
    verdict: Verdict


def stretches(rows: Iterable[Mapping[str, Any]]) -> list[Stretch]:
    return [Stretch(**{name: int(row[name]) for name in Stretch.__slots__}) for row in rows]


def learned(course: Sequence[Stretch]) -> Learned | None:
    """Compare a run's beginning with its end. Return None if `course` has fewer than two stretches of steps."""
    if len(course) < 2:
        return None
    begin, end = _end(course), _end(course[::-1])
    (begin_low, begin_high), (end_low, end_high) = begin.interval, end.interval
    verdict: Verdict = "learned" if end_low > begin_high else "got worse" if end_high < begin_low else "cannot tell"
    return Learned(begin=begin, end=end, verdict=verdict)


def _end(course: Sequence[Stretch]) -> Stretch:
    most, taken = max(1, len(course) // 4), 1
    while taken < most and sum(stretch.groups for stretch in course[:taken]) < GROUPS_MIN:
        taken += 1
    return together(course[:taken])


def together(parts: Sequence[Stretch]) -> Stretch:
    sums = {name: sum(getattr(part, name) for part in parts) for name in Stretch.__slots__ if name not in _ENDS}
    return Stretch(first=min(part.first for part in parts), last=max(part.last for part in parts), **sums)
