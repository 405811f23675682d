from dataclasses import replace

import pytest

from rose.runtime.policy.policies import NAMES, POLICIES, numbered
from rose.runtime.policy.routing import TurnFacts
from tests.runtime.policy.workers import BORROWED, DEDICATED, NOW_NS

WORKERS = [BORROWED, replace(DEDICATED, in_flight=2)]
TURN = TurnFacts(prefix_engine_id=None, version_min=0)


def test_a_policy_travels_over_the_page_as_its_number():
    for number, name in enumerate(NAMES):
        assert numbered(number) is POLICIES[name]
    for unknown in (-1, len(NAMES)):
        assert numbered(unknown) is POLICIES["solo"], "what nobody knows lends nothing"


@pytest.mark.parametrize(
    ("name", "placed", "borrows"),
    [
        ("rose", "borrowed", True),
        ("solo", "dedicated", False),
        ("share_all", "borrowed", True),
        ("static_split", "borrowed", True),
    ],
)
def test_what_each_decides(name, placed, borrows):
    policy = POLICIES[name]
    assert policy.place(TURN, WORKERS, NOW_NS).engine_id == placed
    assert policy.borrow(10**9, 0.5, 10**6) is borrows
