"""The limits of event fields. A sum of 255 amounts, or of an instant and 127 durations, fits into 64 bits."""

from dataclasses import dataclass
from typing import Annotated

INSTANT_NS_MAX = 2**62 - 1
INSTANT_US_MAX = INSTANT_NS_MAX // 1000
AMOUNT_MAX = 2**55 - 1


@dataclass(frozen=True, slots=True)
class Range:
    least: int
    most: int
    about: str = ""
    sort: str = "an integer"

    def __str__(self) -> str:
        return f"{self.sort} from {self.least} to {self.most}{self.about}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on the fields of an event. `holds` is a Python or NumPy expression. (For SQL, replace `==` by
    `=`.) A message says that `field` must be `wanted`."""

    field: str
    holds: str
    wanted: str


NOT_EMPTY = "at least one character"
Id = Annotated[str, NOT_EMPTY]
InstantUs = Annotated[int, Range(0, INSTANT_US_MAX, ", UTC microseconds from 1970 to 2116")]
InstantNs = Annotated[int, Range(0, INSTANT_NS_MAX, ", UTC nanoseconds from 1970 to 2116")]
DurationNs = Annotated[int, Range(0, AMOUNT_MAX, " nanoseconds")]
Bytes = Annotated[int, Range(0, AMOUNT_MAX, " bytes")]
Count = Annotated[int, Range(0, AMOUNT_MAX)]
Share = Annotated[float, Range(0, 1, sort="a number")]
Difference = Annotated[int, Range(-AMOUNT_MAX, AMOUNT_MAX)]
OffsetNs = Annotated[int, Range(-INSTANT_NS_MAX, INSTANT_NS_MAX, " nanoseconds")]

INTERVAL = (
    Rule("t1_ns", "t0_ns <= t1_ns", "at or after t0_ns"),
    Rule("t1_ns", f"t1_ns - t0_ns <= {AMOUNT_MAX}", f"at most {AMOUNT_MAX} ns after t0_ns"),
)
