"""The bytes that each way sends for the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.transfer.ways import WAYS, Way
from rose.runtime.transfer.codec.header import Bits


@dataclass(frozen=True, slots=True)
class Compared:
    """One step."""

    elements: int
    changed: int
    sent_bytes: dict[str, int]

    @property
    def dense_bytes(self) -> int:
        return 2 * self.elements

    def to_json(self) -> dict[str, object]:
        """Return the step as the detail keeps it."""
        ways = {
            name: {
                "bytes": sent,
                "bits_per_change": round(8 * sent / max(self.changed, 1), 2),
                "against_dense": round(self.dense_bytes / sent, 2),
            }
            for name, sent in self.sent_bytes.items()
        }
        return {
            "elements": self.elements,
            "changed_share": self.changed / self.elements,
            "ways": ways,
        }


def compare(base: Bits, new: Bits, ways: Sequence[Way] = WAYS) -> Compared:
    """Encode a step in all ways; each is applied again and must give the same bits."""
    sent_bytes = {}
    for way in ways:
        sent = way.encode(base, new)
        held = base.copy()
        way.apply(held, sent)
        assert np.array_equal(held, new), f"{way.name} is not lossless"
        sent_bytes[way.name] = len(sent)
    return Compared(base.size, int(np.count_nonzero(base != new)), sent_bytes)
