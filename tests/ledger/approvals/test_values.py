from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.ledger.approvals.values import ACTS, LOG_ACCESS, Rules
from rose.ledger.layout import LedgerError

any_rules = st.builds(
    Rules,
    log_access=st.sampled_from(LOG_ACCESS),
    retention_min_days=st.floats(0, 10_000),
    approve=st.frozensets(st.sampled_from(ACTS)),
    approvers=st.frozensets(st.sampled_from(["a" * 64, "b" * 64])),
)


@given(any_rules, any_rules)
def test_the_stricter_of_two_is_as_strict_as_either(one: Rules, other: Rules) -> None:
    made = one.stricter(other)
    for rules in (one, other):
        assert LOG_ACCESS.index(made.log_access) >= LOG_ACCESS.index(rules.log_access)
        assert made.retention_min_days >= rules.retention_min_days
        assert made.approve >= rules.approve
    assert made.approvers == one.approvers


@given(any_rules)
def test_rules_go_through_json_and_back(rules: Rules) -> None:
    assert Rules.from_json(rules.to_json()) == rules


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"log_access": "all"}, "log_access"),
        ({"retention_min_days": "400d"}, "retention_min_days"),
        ({"retention_min_days": True}, "retention_min_days"),
        ({"retention_min_days": float("nan")}, "retention_min_days"),
        ({"approve": "rules"}, "approve"),
        ({"approve": [["rules"]]}, "approve"),
        ({"approvers": ["A" * 64]}, "approvers"),
        ({"more": 1}, "more"),
    ],
)
def test_values_that_are_no_rules_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(LedgerError, match=says):
        Rules.from_json({**Rules().to_json(), **change})
