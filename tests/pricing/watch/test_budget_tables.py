from pathlib import Path

from rose.ledger.ledger import Ledger
from rose.pricing import period
from rose.pricing.watch import budget, budget_tables
from tests.pricing.closing.conftest import BOOK, NEXT_DAY_US
from tests.pricing.conftest import printed


def test_forecasts_are_shown_with_the_fleet_first(fleet_kept: Path) -> None:
    june = period.of_month("2026-06")
    text = printed(budget_tables.forecasts(budget.expected(Ledger(fleet_kept), june, BOOK, now_us=NEXT_DAY_US)))
    assert "What 2026-06 will have cost [amortized; USD, live] team spent forecast 95% interval" in text
    assert "the fleet $3.87 - - chat $2.77 - - research $1.10 - -" in text
    assert "not enough days: need 28 whole UTC days, have 1" in text


def test_budgets_are_shown_with_their_method(fleet: Path) -> None:
    june = period.of_month("2026-06")
    for team, usd in (("chat", "1"), ("nobody", "5")):
        budget.set_budget(Ledger(fleet), team, usd, june)
    text = printed(budget_tables.budgets(budget.show(Ledger(fleet), june, BOOK, now_us=NEXT_DAY_US)))
    assert "Budgets of 2026-06 [amortized; USD, live]" in text
    assert "chat $1.00 $2.77 $0.00 -$1.77 - -" in text
    assert "not enough days: need 28 whole UTC days, have 1; no charge at all: nobody" in text
