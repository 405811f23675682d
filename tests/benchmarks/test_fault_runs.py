"""The fleet's benchmark with engines that compute nothing: everything else of it is what it is on real ones."""

from __future__ import annotations

import pytest

from benchmarks.faults import processes
from benchmarks.faults.processes import Sample
from benchmarks.faults.runs import claims, setting
from benchmarks.faults.runs.__main__ import measure
from benchmarks.faults.runs.claims import Seen
from rose.accept.report import Report
from tests.runtime import hosts


@pytest.mark.live
@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))
def test_two_runs_of_two_teams_one_killed_and_resumed_come_to_the_bill(tmp_path):
    report = Report("fleet", quick=True)
    measure(report, tmp_path, "stand-in")
    assert {claim.name: claim.value for claim in report.claims if not claim.holds} == {}
    assert report.detail["bill_nano"] > 0
    assert set(report.detail["processes"]) == {
        "controller",
        "keeper",
        "host agent of host one",
        "host agent of host other",
    }


def sample(at_s, memory_bytes, *, pid=1, cpu_s=0.0, turns=0):
    return Sample(at_s, pid, memory_bytes, cpu_s, turns)


def test_memory_that_grows_is_told_by_thirds():
    flat = [sample(number, 100) for number in range(9)]
    assert processes.growth(flat) == 1.0
    # What a process takes as it begins is not growth.
    assert processes.growth([sample(number, 1) for number in range(3)] + flat[:6]) == 1.0
    assert processes.growth([sample(number, 100 + 10 * number) for number in range(9)]) == pytest.approx(170 / 140)
    assert processes.growth(flat[:2]) is None


def test_of_a_part_that_was_started_again_the_longest_life_is_looked_at():
    lives = [sample(0, 1), sample(1, 1, pid=2), sample(5, 2, pid=2), sample(6, 1, pid=3)]
    assert processes.longest_lived(lives) == lives[1:3]
    assert processes.longest_lived([]) == []


def test_a_part_that_was_started_again_is_counted_on():
    taken = [
        sample(0, 1, cpu_s=1.0),
        sample(1, 1, cpu_s=2.0, turns=10),
        sample(2, 1, pid=2, cpu_s=0.5, turns=15),
        sample(3, 1, pid=2, cpu_s=1.5, turns=20),
    ]
    assert processes.cpu_ms_per_turn(taken) == pytest.approx(2.5 / 20 * 1e3)
    assert processes.cpu_ms_per_turn(taken[:1]) is None
    assert processes.cpu_ms_per_turn([]) is None


def seen():
    """What a fleet leaves with which all is well."""
    runs = [{"run_id": "fleet", "fleet_run_id": "fleet", "name": "fleet", "status": "ended", "team": "platform"}]
    runs += [
        {"run_id": team.name, "fleet_run_id": "fleet", "name": team.name, "status": "ended", "team": team.name}
        for team in setting.TEAMS
    ]
    syncs = [
        {"device_id": "serving-other", "rl_run_id": "research", "source": "relay", "route": setting.ROUTE},
        {"device_id": "serving-one", "rl_run_id": "agents", "source": "relay", "route": setting.ROUTE},
        {"device_id": "rollout-one", "rl_run_id": "research", "source": "trainer", "route": "loopback"},
    ]
    lines = [("fleet", "platform", 5), ("research", "research", 3), ("agents", "agents", 2)]
    turned = [{"device_id": device_id, "outcome": "completed"} for device_id in setting.DEVICES]
    cost = {
        by: {"bill_nano": 10, "lines": [{by: line[column], "cost_nano": line[2]} for line in lines]}
        for column, by in enumerate(("run", "team"))
    }
    books = {
        "problems": [],
        "wrong": {"turns that were completed more than once": []},
        "runs": runs,
        "steps": [{"run_id": team.name, "steps": 4} for team in setting.TEAMS],
        "turns": turned,
        "syncs": [{**sync, "ok": True, "syncs": 3} for sync in syncs],
        "shared": [{"device_id": "serving-one", "rollout_run_id": team.name} for team in setting.TEAMS],
        "writers": [{"writer": "other.agent", "events": 7}, {"writer": "one.agent", "events": 9}],
        "charges": [{"run_id": run_id, "team": team, "cost_nano": nano} for run_id, team, nano in lines],
        "bill_nano": 10,
        "exact_nano": 10.0,
        "rounded": 2,
    }
    return Seen(
        books=books,
        writers_there=[{"writer": "other.agent", "events": 7}],
        costs=cost,
        report={view: {"total": {"value": 10}} for view in ("amortized", "fully_loaded")},
        fences=(1, 2),
        steps_told={team.name: 4 for team in setting.TEAMS},
        clock_offsets_ns={device_id: [0] for device_id in setting.DEVICES},
        samples={"controller": [sample(number, 100) for number in range(9)]},
    )


def failed(facts):
    report = Report("fleet", quick=True)
    claims.claim(report, facts, long=True)
    return [claim.name for claim in report.claims if not claim.holds]


def test_a_fleet_whose_books_are_in_order_has_all_claims_hold():
    assert failed(seen()) == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda facts: facts.books["problems"].append("x"), "problems that verify finds in the ledger"),
        (lambda facts: facts.writers_there[0].update(events=8), "events of the second host that the ledger lacks"),
        (
            lambda facts: facts.books["wrong"]["turns that were completed more than once"].append(["t"]),
            "turns that were completed more than once",
        ),
        (
            lambda facts: facts.books["syncs"][0].update(route="loopback"),
            "syncs with another source or route than theirs",
        ),
        (lambda facts: facts.books["charges"][0].update(cost_nano=6), "charges of runs and teams, less the bill"),
        (
            lambda facts: facts.costs["team"].update(bill_nano=9),
            "the bill of `rose cost --by team`, less the bill",
        ),
        (lambda facts: facts.steps_told.update(agents=5), "steps that trainers and ledger do not both know"),
        (lambda facts: setattr(facts, "fences", (1, 1)), "trainers killed and resumed"),
        (lambda facts: facts.clients.append("it failed"), "trainers that did not end as they were to"),
        (
            lambda facts: facts.samples["controller"].append(sample(9, 10_000)),
            "memory of controller, last third over the one before",
        ),
    ],
)
def test_what_is_wrong_is_a_claim_that_does_not_hold(change, named):
    facts = seen()
    change(facts)
    assert failed(facts) == [named]


def test_the_fleet_file_of_each_kind_of_engines_can_be_used():
    for engines in ("sglang", "stand-in"):
        config = setting.config(engines)
        assert {device.host for device in config.device} == set(setting.HOSTS)
        assert [device.serving_url is None for device in config.device if device.pool == "serving"] == [
            engines == "sglang"
        ] * 2
