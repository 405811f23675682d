import pytest

from rose.accept.coserve.keeper import ROSE, ROSE_SLACK, SHARE_ALL, SOLO
from rose.accept.coserve.rounds import Round, claim_never_empty
from rose.accept.stage import Scope, StageReport
from rose.accept.stages import busy_engines
from rose.runtime.policy.slack import Budgets
from tests.accept.made_requests import completed

MS = 1_000_000


@pytest.fixture
def report(tmp_path) -> StageReport:
    return StageReport("busy_engines", False, file=tmp_path / "out.json")


def a_round(policy: str, ttft_ms: float, tpot_ms: float, tokens: int) -> Round:
    served = tuple(completed(round(ttft_ms * MS), round(tpot_ms * MS)) for _ in range(4))
    return Round(
        policy=policy, number=0, t0_ns=0, t1_ns=1000, requests=served, spans=(), rollout={}, tokens=tokens, lost_spans=0
    )


def test_what_is_claimed_of_a_serving_that_is_never_empty(report):
    played = {
        SOLO: [a_round(SOLO, 100, 10, 0)],
        ROSE: [a_round(ROSE, 107.5, 12, 50)],
        ROSE_SLACK: [a_round(ROSE_SLACK, 120, 24, 90)],
        SHARE_ALL: [a_round(SHARE_ALL, 300, 30, 200)],
    }
    claim_never_empty(report, played, Budgets(200 * MS, 25 * MS), "2 live")
    assert {
        claim.name.removeprefix("2 live: "): (pytest.approx(claim.value), claim.holds) for claim in report.claims
    } == {
        "requests over budget, rose_slack less solo": (0, True),
        "mean TPOT, rose / solo": (1.2, True),
        "TTFT p99, rose less 1.05 solo": (2.5, True),
        "rollout tokens, rose_slack / share_all": (0.45, False),
    }


def test_nothing_is_claimed_of_policies_that_were_not_played(report):
    claim_never_empty(report, {SOLO: [a_round(SOLO, 100, 10, 0)]}, Budgets(200 * MS, 25 * MS), "2 live")
    assert report.claims == []


def test_a_kill_may_lengthen_the_steps_that_were_queued(report):
    struck_ns = 95 * MS
    times = [0, 20, 40, 60, 80, 102, 120, 130, 140, 150, 160]  # Beside rollouts a step takes 20 ms, alone 10 ms.
    busy_engines.claim_kill(report, "rollout", [[at * MS for at in times], []], struck_ns, work_ns=0)
    assert {claim.name.removeprefix("busy_engines: "): (claim.value, claim.holds) for claim in report.claims} == {
        "requests failed, rollout killed": (1, False),
        "rollouts' time afterwards, rollout killed": (0, True),
        "longest step / alone, rollout killed": (2.2, True),
        "next step / alone, rollout killed": (1, True),
    }
    with pytest.raises(RuntimeError, match="no step to measure"):
        busy_engines.claim_kill(report, "rollout", [[0, 100 * MS]], struck_ns, work_ns=0)


@pytest.mark.live
@pytest.mark.long
def test_every_policy_and_both_kills_are_measured_on_cpu_cores(tmp_path):
    report = StageReport("busy_engines", True, file=tmp_path / "out.json")
    folder = tmp_path / "work"
    folder.mkdir()
    busy_engines.measure(Scope(gpu=None, quick=True, seconds=280, folder=folder), report)
    claims = {claim.name.removeprefix("busy_engines: "): claim.value for claim in report.claims}
    assert {name: fact for name, fact in report.facts.items() if name.endswith("failure")} == {}
    for load in busy_engines.LIVE:
        assert len(report.detail[load]) == len(busy_engines.PLAYED)
        assert claims[f"{load}: rollout tokens, rose_slack / share_all"] > 0
    for name in ("rollout", "lease's writer"):
        assert claims[f"requests failed, {name} killed"] == 0
        assert claims[f"rollouts' time afterwards, {name} killed"] == 0
        assert report.facts[f"{name} killed: credit at the time, ms"] > 0
