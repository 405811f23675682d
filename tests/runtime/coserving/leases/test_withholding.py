from rose.clock import Anchor
from rose.config import CoservingConfig
from rose.runtime.coserving.leases.withholding import Withholding, rules
from rose.runtime.policy.holdout import HoldoutRules, window_at
from tests.runtime.coserving.lending import Recorded

SECOND = 1_000_000_000
RULES = HoldoutRules(share=0.3, window_ns=10 * SECOND, washout_ns=2 * SECOND, seed=1)
#: Two windows in a row of which the second is withheld.
NUMBER = next(
    n
    for n in range(1000)
    if [window_at(RULES, "d0", k * RULES.window_ns).withheld for k in (n, n + 1, n + 2)] == [False, True, False]
)
BEGAN_NS = NUMBER * RULES.window_ns + 4 * SECOND


def make(drawn_by=RULES):
    recorded = Recorded()
    return Withholding("d0", "r0", drawn_by, Anchor(0), recorded, BEGAN_NS), recorded


def test_what_a_fleet_file_says():
    assert rules(CoservingConfig(holdout_share=0.1, holdout_window_s=60, holdout_washout_s=1.5, holdout_seed=3)) == (
        HoldoutRules(share=0.1, window_ns=60 * SECOND, washout_ns=1_500_000_000, seed=3)
    )


def test_each_window_is_recorded_once_as_it_begins_with_all_that_its_draw_is_made_of():
    withholding, recorded = make()
    looks = [BEGAN_NS + n * SECOND for n in range(20)]
    withheld = [withholding.look(now_ns, wanted=True) for now_ns in looks]
    assert withheld == [False] * 6 + [True] * 10 + [False] * 4
    first, second, third = recorded
    assert (first.t0_ns, first.t1_ns) == (BEGAN_NS, (NUMBER + 1) * 10 * SECOND)
    assert (second.t0_ns, second.t1_ns) == ((NUMBER + 1) * 10 * SECOND, (NUMBER + 2) * 10 * SECOND)
    assert third.t0_ns == second.t1_ns
    assert [event.withheld for event in recorded] == [False, True, False]
    assert second.draw == window_at(RULES, "d0", second.t0_ns).draw
    assert (second.holdout_share, second.holdout_seed) == (0.3, 1)
    assert (second.window_ns, second.washout_ns) == (10 * SECOND, 2 * SECOND)
    assert second.device_id == "d0"


def test_what_rollouts_wanted_in_vain_is_a_hold():
    withholding, recorded = make()
    for n in range(10):
        withholding.look(BEGAN_NS + n * SECOND, wanted=n % 2 == 0)
    withholding.tell()
    withholding.tell()
    (hold,) = (event for event in recorded if event.kind == "hold")
    # Wanted when looked at after 6 s and 8 s, each for the second before it.
    assert (hold.reason, hold.count, hold.duration_ns) == ("withheld", 1, 2 * SECOND)
    assert (hold.device_id, hold.engine_id) == ("d0", "r0")
    assert hold.at_us == (BEGAN_NS + 5 * SECOND) // 1000


def test_where_nothing_is_ever_withheld_nothing_is_recorded():
    withholding, recorded = make(HoldoutRules(share=0.0, window_ns=SECOND, washout_ns=0, seed=0))
    assert not withholding.look(BEGAN_NS, wanted=True)
    withholding.tell()
    assert recorded == []
