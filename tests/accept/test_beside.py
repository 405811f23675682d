import pytest

from rose.accept.stage import Scope, StageReport
from rose.accept.stages import beside
from rose.accept.stages.gate_processes import BusyStep, after_wish

MS = 1_000_000


@pytest.mark.long
def test_the_stage_measures_what_work_beside_serving_costs_and_that_a_third_process_ends_it(tmp_path):
    report = StageReport("beside", True, file=tmp_path / "out.json")
    beside.measure(Scope(gpu=None, quick=True, seconds=60, folder=tmp_path), report)
    claims = {claim.name: claim for claim in report.claims}
    assert {name.removeprefix("beside: ") for name in claims} == {
        "delay per work, least",
        "delay per work, most",
        "delays off their line",
        "rollouts' share of the time on the policy's credit",
        "work beside a third process",
        "slice sum error",
    }
    assert claims["beside: slice sum error"].value == 0
    assert claims["beside: work beside a third process"].value == 0
    works_ms = [report.facts[f"credit for {share}% of a step: work and delay of each, ms"][0] for share in (25, 50, 75)]
    assert max(works_ms) > 0
    assert report.facts["wishes"] > 0


def a_round(length_ms: float, work_ms: float) -> list[BusyStep]:
    return [BusyStep(round(length_ms * MS), round(work_ms * MS))] * 10


def test_the_factor_is_the_slope_of_delays_over_work():
    factor, off_ns, allowed_ns = beside.line_of([(3 * MS, 3.6 * MS), (6 * MS, 7.2 * MS), (9 * MS, 10.8 * MS)])
    assert (factor, off_ns, allowed_ns) == (pytest.approx(1.2), pytest.approx(0, abs=1), beside.SLICE_NS)
    _, bent_ns, allowed_ns = beside.line_of([(30 * MS, 30 * MS), (60 * MS, 60 * MS), (90 * MS, 126 * MS)])
    assert bent_ns > allowed_ns == pytest.approx(12.6 * MS)
    assert beside.line_of([(0, MS)])[0] == 0, "without work there is no factor"


def test_a_delay_is_measured_against_the_control_round_beside_it():
    rounds, alone = [a_round(14, 3), a_round(24, 3), a_round(16, 3)], [a_round(10, 0), a_round(20, 0), a_round(10, 0)]
    assert beside.point_of(rounds, alone) == (3 * MS, 4 * MS)


@pytest.mark.parametrize("quick", [True, False])
def test_claims_of_rounds(tmp_path, quick):
    report = StageReport("beside", quick, file=tmp_path / "out.json")
    delays = {0.0: (10, 0), 0.25: (13, 2.5), 0.5: (16, 5), 0.75: (24, 7.5)}
    beside.claim_rounds(report, {share: [a_round(*times)] * 2 for share, times in delays.items()})
    holds = {claim.name.removeprefix("beside: "): claim.holds for claim in report.claims}
    longest = {} if quick else {"longest step / alone": False}
    assert holds == longest | {
        "delay per work, least": True,
        "delay per work, most": False,
        "delays off their line": False,
    }
    assert report.facts["longest step / alone, by credit"] == {0.0: 1, 0.25: 1.3, 0.5: 1.6, 0.75: 2.4}


def test_serving_is_at_full_speed_from_the_first_layer_that_takes_its_usual_time():
    step_ns, layers = 4 * MS, 4
    slowed = [0, 1, 4, 5, 6, 7, 8]  # The layer that runs at the wish takes 3 ms instead of 1.
    seen = after_wish([end * MS for end in slowed], 2 * MS, layers, step_ns)
    assert seen.full_speed_ns == 2 * MS
    assert seen.delay_ns == MS, "two layers later serving is a millisecond late, as the wish came within a layer"
    undisturbed = after_wish([end * MS for end in range(9)], 2 * MS, layers, step_ns)
    assert undisturbed == (0, 0)
    never = after_wish([0, 2 * MS, 4 * MS], 2 * MS, layers, step_ns)
    assert never.full_speed_ns == 2 * MS
