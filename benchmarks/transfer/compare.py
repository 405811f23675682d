"""The bytes that each way sends for the same step, and the entropy as a lower bound."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.transfer.ways import WAYS
from rose.runtime.transfer.codec import changes
from rose.runtime.transfer.codec.header import Bits

_BF16_MANTISSA_BITS = 7
_EXPONENTS = 256


@dataclass(frozen=True, slots=True)
class Compared:
    """One step. `bound_bytes` is the entropy of the changes given the base's exponents."""

    elements: int
    changed: int
    bound_bytes: float
    sent_bytes: dict[str, int]

    def to_json(self) -> dict[str, object]:
        ways = {
            name: {"bytes": sent, "bits_per_change": round(8 * sent / max(self.changed, 1), 2)}
            for name, sent in self.sent_bytes.items()
        }
        return {
            "elements": self.elements,
            "changed_share": self.changed / self.elements,
            "entropy_bits_per_change": round(8 * self.bound_bytes / max(self.changed, 1), 3),
            "ways": ways,
        }


def compare(base: Bits, new: Bits) -> Compared:
    """Encode a step in all ways; applying each must give the same bits."""
    sent_bytes = {}
    for way in WAYS:
        sent = way.encode(base, new)
        held = base.copy()
        way.apply(held, sent)
        assert np.array_equal(held, new), f"{way.name} is not lossless"
        sent_bytes[way.name] = len(sent)
    return Compared(base.size, int(np.count_nonzero(base != new)), entropy_bits(base, new) / 8, sent_bytes)


def entropy_bits(base: Bits, new: Bits) -> float:
    """Return elements times the entropy of an element's change, in ULPs, given the base's exponent; for bf16. It is a
    little too low, since a code would also have to send the frequencies, which are of this very step."""
    exponents = base >> _BF16_MANTISSA_BITS & _EXPONENTS - 1
    places, steps = changes.between(base, new).positions_and_steps()
    of_changed = exponents[places].astype(np.uint32)
    changed = np.unique(of_changed << 16 | steps.astype(np.uint16), return_counts=True)[1]
    sizes = np.bincount(exponents, minlength=_EXPONENTS)
    unchanged = sizes - np.bincount(of_changed, minlength=_EXPONENTS)
    return _n_log_n(sizes) - _n_log_n(unchanged) - _n_log_n(changed)


def _n_log_n(counts: npt.NDArray[np.int64]) -> float:
    some = counts[counts > 0].astype(np.float64)
    return float(np.sum(some * np.log2(some)))
