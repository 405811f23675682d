"""Verdicts. A side is named only where the whole 95% interval lies on it; else more evidence is needed."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rose.pricing.stats.uncertainty import Z, wilson


def exceeds(low: float, high: float | None, other: float = 0.0) -> bool | None:
    """Return whether a value with this 95% interval is above `other`; None where that cannot be told. An interval
    without a `high` is unbounded."""
    if low > other:
        return True
    return False if high is not None and high <= other else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """Requests of serving, how many missed a latency budget, and the share that has to keep theirs."""

    late: int
    requests: int
    target: Fraction

    @property
    def kept(self) -> bool | None:
        """Whether serving keeps the target; None where there are too few requests to tell."""
        late = exceeds(*self._late, float(1 - self.target))
        return None if late is None else not late

    @property
    def more(self) -> int | None:
        """Further requests with the same share late that would tell; None if none are needed, or none would."""
        off = Fraction(self.late, self.requests) - (1 - self.target) if self.requests else 0
        if self.kept is not None or not off:
            return None
        # Wilson's interval has the target in it while n * off^2 <= Z^2 * target * (1 - target).
        return max(1, ceil(Z * Z * float(self.target * (1 - self.target) / off**2)) - self.requests)

    @property
    def text(self) -> str:
        """`1 of 83 late, 95% 93.5 to 99.8% within their latency budgets`, and what is missing."""
        if not self.requests:
            return "no requests"
        ends = [100 * (1 - end) for end in reversed(self._late)]
        # 100% is all and 0% is nothing: what is near has more digits.
        digits = next((n for n in range(1, 6) if all(end in (0, 100) or 0 < round(end, n) < 100 for end in ends)), 1)
        within = " to ".join(f"{end:.{digits}f}" for end in ends)
        text = f"{self.late:,} of {self.requests:,} late, 95% {within}% within their latency budgets"
        if self.kept is not None:
            return text
        enough = f"; {self.more:,} more like these would tell" if self.more else ""
        return f"too few requests to tell: {text}{enough}"

    @property
    def _late(self) -> tuple[float, float]:
        """Wilson's 95% interval of the late share; without requests everything is possible."""
        return wilson(self.late / self.requests, self.requests) if self.requests else (0.0, 1.0)
