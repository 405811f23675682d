from __future__ import annotations

from pathlib import Path

import pytest

from rose.ledger import layout, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.spend.saved import saved
from tests.pricing.closing.conftest import DAY_NS, T0_NS
from tests.pricing.conftest import OURS

DAY = Period(T0_NS, T0_NS + DAY_NS)


def test_an_archived_period_is_refused_and_not_called_free(sample: Path, tmp_path: Path) -> None:
    before = bill(sample, DAY, OURS).frame
    assert before["cost_nano"].sum() > 0
    for writer in layout.writers(sample):
        if (tail := segments.recover(sample, writer)) is not None:
            segments.begin_epoch(sample, tail)
    compaction.compact(sample)
    rollup.roll_up(sample)
    archive.archive(sample, older_than_days=0, to=str(tmp_path / "away"), delete=True, grace_s=0)
    for ask in (bill, saved):
        with pytest.raises(PricingError, match=r"were archived, so .* only be priced in part.*rose ledger restore"):
            ask(sample, DAY, OURS)
    archive.restore(sample, str(tmp_path / "away"))
    assert bill(sample, DAY, OURS).frame.equals(before)
