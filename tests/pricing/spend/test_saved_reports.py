from __future__ import annotations

from pathlib import Path

import pytest

from rose.ledger.layout import LedgerError
from rose.pricing.money import PricingError
from rose.pricing.spend import saved_reports
from rose.pricing.spend.sums import FOLDER


def test_reports_are_kept_by_name_and_replaced(fleet: Path) -> None:
    assert saved_reports.load(fleet) == {}
    saved_reports.save(fleet, "weekly-teams", {"period": "7d", "by": ["team"]})
    saved_reports.save(fleet, "a", {})
    saved_reports.save(fleet, "weekly-teams", {"period": "last-week"})
    assert list(saved_reports.load(fleet)) == ["a", "weekly-teams"]
    assert saved_reports.options(fleet, "weekly-teams") == {"period": "last-week"}
    saved_reports.forget(fleet, "a")
    assert list(saved_reports.load(fleet)) == ["weekly-teams"]


def test_what_is_no_report_is_refused(fleet: Path) -> None:
    with pytest.raises(PricingError, match=r"'\.\./x' is no name"):
        saved_reports.save(fleet, "../x", {})
    with pytest.raises(PricingError, match="no report is saved as 'x'; there is none yet"):
        saved_reports.forget(fleet, "x")
    (fleet / FOLDER).mkdir()
    for text in ("{", "[]", '{"x": 1}'):
        (fleet / FOLDER / saved_reports.FILE).write_text(text)
        with pytest.raises(LedgerError, match="saved reports"):
            saved_reports.load(fleet)
