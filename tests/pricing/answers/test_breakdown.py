from contextlib import closing
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.ledger.files import catalog
from rose.pricing.answers import breakdown
from rose.pricing.answers.breakdown import UNALLOCATED
from rose.pricing.money import nano_usd_of
from rose.pricing.query import rows, set_variables
from rose.pricing.run import cost_per_correct, tokens
from rose.pricing.run.cost_per_correct import TokenCost
from rose.pricing.stats.uncertainty import Estimate
from tests.long_form import usual
from tests.pricing.answers.conftest import token_cost
from tests.pricing.identities import random_ledger

part: Any = {"part": st.sampled_from([None, "1", "2", "maze"]), "group_id": st.sampled_from(["g0", "g1", "g2"])}
part |= {"accepted": st.integers(0, 4)} | dict.fromkeys(("borrowed_tokens", "dedicated_tokens"), st.integers(0, 10**6))
parts_of_groups = st.lists(st.fixed_dictionaries(part), max_size=12)
usd = st.fractions(-5, 5, max_denominator=10**12)


def cost_of(borrowed: Fraction, dedicated: Fraction) -> TokenCost:
    """100 useful tokens of each placement, their prices known exactly."""
    by_line = (1, dedicated / 100, borrowed / 100, (borrowed + dedicated) / 200)
    known = Estimate(*[float(borrowed)] * 3)
    return token_cost(by_line, 0.5, 200, paid={"borrowed": borrowed, "dedicated": dedicated}, borrow=known)


@settings(max_examples=50)
@given(parts_of_groups, usd, usd)
def test_the_rows_sum_to_the_run(group_parts: list[dict[str, Any]], borrowed: Fraction, dedicated: Fraction) -> None:
    parts = breakdown.parts(group_parts, cost_of(borrowed, dedicated))
    assert sum(part.cost_nano_usd for part in parts) == nano_usd_of(borrowed) + nano_usd_of(dedicated)
    assert sum(part.accepted for part in parts) == sum(row["accepted"] for row in group_parts)
    assert [part.key for part in parts].count(UNALLOCATED) == 1
    assert parts[-1].key == UNALLOCATED


def test_dollars_follow_the_tokens_of_each_placement() -> None:
    group_parts = [
        {"part": "1", "group_id": "g0", "accepted": 2, "borrowed_tokens": 30, "dedicated_tokens": 10},
        {"part": "2", "group_id": "g1", "accepted": 1, "borrowed_tokens": 50, "dedicated_tokens": 0},
        {"part": "2", "group_id": "g2", "accepted": 0, "borrowed_tokens": 0, "dedicated_tokens": 0},
        {"part": None, "group_id": None, "accepted": 0, "borrowed_tokens": 20, "dedicated_tokens": 0},
    ]
    first, second, rest = breakdown.parts(group_parts, cost_of(Fraction(10), Fraction(4)))
    assert (first.key, first.cost_nano_usd, first.usd_per_accepted) == ("1", 7 * 10**9, Fraction(7, 2))
    assert (second.key, second.cost_nano_usd, second.usd_per_accepted) == ("2", 5 * 10**9, 5)
    assert (rest.key, rest.cost_nano_usd, rest.usd_per_accepted) == (UNALLOCATED, 2 * 10**9, None)
    assert first.interval is None  # one group tells nothing
    assert second.interval is None  # and two do not tell enough
    # Dollars without a token belong to none.
    group_parts = [{"part": "1", "group_id": "g0", "accepted": 1, "borrowed_tokens": 0, "dedicated_tokens": 10}]
    first, rest = breakdown.parts(group_parts, cost_of(Fraction(3), Fraction(4)))
    assert (first.cost_nano_usd, rest.cost_nano_usd) == (4 * 10**9, 3 * 10**9)


def test_the_interval_holds_the_figure() -> None:
    group_parts = [
        {"part": "1", "group_id": f"g{n}", "accepted": n % 5, "borrowed_tokens": 100 + n % 7, "dedicated_tokens": n % 3}
        for n in range(60)
    ]
    paid = cost_of(Fraction(3), Fraction(4))
    part, _ = breakdown.parts(group_parts, paid)
    assert part.interval is not None
    assert part.interval.low <= float(part.usd_per_accepted or 0) <= (part.interval.high or inf)


@pytest.mark.parametrize("way", get_args(breakdown.By))
def test_the_sample_by_hand(sample_kept: Path, way: breakdown.By) -> None:
    with closing(catalog.connect(sample_kept)) as connection:
        set_variables(connection, run_id="run", part=way)
        group_parts = rows(connection, "answers/group_parts")
    # 100 tokens that a preemption threw away belong to none; no trajectory of the sample has a policy version.
    keys = {"version": [None], "task": ["t", None], "step": ["1", "2", None]}[way]
    assert list(dict.fromkeys(row["part"] for row in group_parts)) == keys
    nobodys = {"part": None, "group_id": None, "accepted": 0, "borrowed_tokens": 100, "dedicated_tokens": 0}
    assert group_parts[-1] == nobodys
    by_group = {(row["part"], row["group_id"]): row for row in group_parts}
    part = {"version": None, "task": "t", "step": "1"}[way]
    g0 = by_group[part, "g0"]
    assert (g0["accepted"], g0["borrowed_tokens"], g0["dedicated_tokens"]) == (1, 3400, 600)


@settings(max_examples=usual(2, long=20), phases=random_ledger.AS_IT_IS)
@given(made=random_ledger.ledgers(portions=1))
def test_every_token_and_accepted_trajectory_of_any_ledger_is_in_one_row(
    made: random_ledger.Made, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any") / "ledger"
    made.write(root)
    with closing(catalog.connect(root)) as connection:
        for run_id in sorted({record.run_id for record in made.recorded}):
            groups, generated = cost_per_correct.groups(connection, run_id), tokens.count(connection, run_id)
            for place in ("borrowed", "dedicated"):
                assert sum(int(row[f"{place}_useful"]) for row in groups.rows) == generated[place].useful
            for way in get_args(breakdown.By):
                set_variables(connection, run_id=run_id, part=way)
                group_parts = rows(connection, "answers/group_parts")
                assert sum(row["accepted"] for row in group_parts) == groups.accepted
                for place in ("borrowed", "dedicated"):
                    assert sum(row[f"{place}_tokens"] for row in group_parts) == generated[place].generated
