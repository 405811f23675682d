"""The entropy of a step, as a lower bound of the bytes that any code takes."""

import numpy as np
import numpy.typing as npt

from rose.runtime.transfer.codec import changes
from rose.runtime.transfer.codec.header import Bits

_BF16_MANTISSA_BITS = 7
_EXPONENTS = 256


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
