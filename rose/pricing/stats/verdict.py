"""Verdicts: is a value above a limit? There is a verdict only if the whole 95% interval is on one side."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from rose.pricing.stats.uncertainty import Z, wilson


def exceeds(low: float, high: float | None, other: float = 0.0) -> bool | None:
    """Return True if a value with this 95% interval is above `other`, False if it is not, and None if it is unclear."""
    if low > other:
        return True
    return False if high is not None and high <= other else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """How many requests there were, how many missed a latency budget (`late`), and the share that must be in time."""

    late: int
    requests: int
    target: Fraction

    @property
    def kept(self) -> bool | None:
        late = exceeds(*self._late, float(1 - self.target))
        return None if late is None else not late

    @property
    def more(self) -> int | None:
        """Return how many more requests with the same late share would give a verdict. Return None if there is a
        verdict already, or if no number of requests would give one."""
        off = Fraction(self.late, self.requests) - (1 - self.target) if self.requests else 0
        if self.kept is not None or not off:
            return None
        # Wilson's interval has the target in it while n * off^2 <= Z^2 * target * (1 - target).
        return max(1, ceil(Z * Z * float(self.target * (1 - self.target) / off**2)) - self.requests)

    @property
    def text(self) -> str:
        """Return a text such as `1 of 83 late; 95% interval: 93.5 to 99.8% within their latency budgets`."""
        if not self.requests:
            return "no requests"
        ends = [100 * (1 - end) for end in reversed(self._late)]
        # 100% is all and 0% is nothing: what is near has more digits.
        digits = next((n for n in range(1, 6) if all(end in (0, 100) or 0 < round(end, n) < 100 for end in ends)), 1)
        within = " to ".join(f"{end:.{digits}f}" for end in ends)
        text = f"{self.late:,} of {self.requests:,} late; 95% interval: {within}% within their latency budgets"
        if self.kept is not None:
            return text
        enough = f"; {self.more:,} more requests like these would give a verdict" if self.more else ""
        return f"too few requests to tell: {text}{enough}"

    @property
    def _late(self) -> tuple[float, float]:
        return wilson(self.late / self.requests, self.requests) if self.requests else (0.0, 1.0)
