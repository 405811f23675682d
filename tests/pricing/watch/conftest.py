from __future__ import annotations

from tests.pricing.closing.conftest import closed, closed_made, fleet, fleet_made, weeks, weeks_made

__all__ = ["closed", "closed_made", "fleet", "fleet_made", "weeks", "weeks_made"]
