"""What a field of an event may hold, declared by its type; every check of an event is made from this.

An integer has a range. A time is below 2^62 ns, which is in February 2116, and an amount below 2^55, which is 417 days
or 32 PiB: an instant and a few durations, or 255 amounts, then sum to less than 64 bits hold, and a TIMESTAMP and a
`datetime` hold every instant. A float is finite and has a range where it is a share, and an id is not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

INSTANT_NS_MAX = 2**62 - 1
INSTANT_US_MAX = INSTANT_NS_MAX // 1000
AMOUNT_MAX = 2**55 - 1


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of a number, and what it is."""

    least: int
    most: int
    about: str = ""
    sort: str = "an integer"

    def __str__(self) -> str:
        return f"{self.sort} from {self.least} to {self.most}{self.about}"


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """A text has at least one character."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What several fields of an event hold together.

    `holds` is a comparison of sums of integer fields that reads the same in Python, NumPy and SQL but for `==`; who
    breaks it is told that `field` must be `wanted`.
    """

    field: str
    holds: str
    wanted: str


Id = Annotated[str, NotEmpty()]
InstantUs = Annotated[int, Range(0, INSTANT_US_MAX, ", UTC microseconds from 1970 to 2116")]
InstantNs = Annotated[int, Range(0, INSTANT_NS_MAX, ", UTC nanoseconds from 1970 to 2116")]
DurationNs = Annotated[int, Range(0, AMOUNT_MAX, " nanoseconds")]
Bytes = Annotated[int, Range(0, AMOUNT_MAX, " bytes")]
Count = Annotated[int, Range(0, AMOUNT_MAX)]
Share = Annotated[float, Range(0, 1, sort="a number")]
Difference = Annotated[int, Range(-AMOUNT_MAX, AMOUNT_MAX)]
#: From one instant to any other.
OffsetNs = Annotated[int, Range(-INSTANT_NS_MAX, INSTANT_NS_MAX, " nanoseconds")]

#: Of an interval [t0_ns, t1_ns).
INTERVAL = (
    Rule("t1_ns", "t0_ns <= t1_ns", "at or after t0_ns"),
    Rule("t1_ns", f"t1_ns - t0_ns <= {AMOUNT_MAX}", f"at most {AMOUNT_MAX} ns after t0_ns"),
)
