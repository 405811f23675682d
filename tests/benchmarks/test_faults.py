"""The parts of the fault trials that need no fleet."""

import time

import msgspec
import pytest

from benchmarks.faults import books, claims, setting
from benchmarks.faults.books import Books, EngineChanged, Gap, LeaseChanged
from benchmarks.faults.claims import Asked, Served
from benchmarks.faults.plan import Fault, Victim
from benchmarks.faults.processes import Sample
from benchmarks.faults.setting import TEAMS, Setting
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import PAGE, LeaseSeen, PageWatch
from rose.accept.report import Report
from rose.clock import monotonic_ns, utc_us
from rose.events import BUCKETS, DeviceSlice, Engine, Lease, Trajectory, Turn
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.page import ArbiterPage, Party, Span, SpanRecord
from rose.runtime.policy.slack import LeaseTerms

S = 1_000_000_000
KILLED = Fault(Victim.AGENT, "one", "idle", 0.0)


def trial(number=1, *, at_s=10, until_s=20, lease=4, lending_s=15, fault=KILLED, at_us=0, anew=(), wrong=()):
    return Trial(
        number=number,
        fault=fault,
        at_ns=at_s * S,
        serving_anew=anew,
        wrong=wrong,
        at_us=at_us or at_s * 1_000_000,
        lease=lease,
        replaced_ns=at_s * S,
        lending_ns=None if lending_s is None else lending_s * S,
        until_ns=until_s * S,
        until_us=until_s * 1_000_000,
    )


def request(sent_s, ended_s, *, failed=False, late=False):
    return Served("one", sent_s * S, ended_s * S, failed, late or failed, "it broke" if failed else None)


def asked(at_s, *, host="one", well=True):
    return Asked(host, round(at_s * S), well)


def both(values):
    return {"one": values, "other": values}


def lease(at_ns, number, expires_ns, without_ns=None):
    return LeaseSeen(at_ns, number, expires_ns, at_ns if without_ns is None else without_ns)


def work(start_s, end_s):
    return SpanRecord(Span.ROLLOUT, round(start_s * S), round(end_s * S))


def seen(**changed):
    facts = {
        "trials": [trial()],
        "leases": both([lease(0, 0, 0), lease(1 * S, 4, 12 * S), lease(14 * S, 5, 17 * S)]),
        "work": both([work(9, 11), work(15, 16)]),
        "ran": both([]),
        "served": [request(1, 2), request(9, 11), request(12, 13)],
        "health": [asked(11)],
        "ttl_s": 3.0,
        "planned": 1,
    }
    return claims.Seen(**{**facts, **changed})


def claimed(facts, ledger=None):
    report = Report("faults", quick=True)
    claims.claim(report, facts, ledger)
    return {claim.name.strip(): claim for claim in report.claims}, report.detail


# ------------------------------------------------------------------ what is seen of the device


def wait_for(holds):
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_the_watch_sees_leases_change_and_work_be_done(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.take(Party.ROLLOUT)
    watch = PageWatch(lambda: (tmp_path / "page", 0))
    watch.start()
    expires_ns = monotonic_ns() + 60 * S
    page.set_lease(LeaseTerms(number=3, expires_ns=expires_ns, kv_budget_tokens=1, compute_share=1.0))
    began = monotonic_ns()
    wait_for(lambda: watch.page is not None)
    page.write_span(Party.ROLLOUT, SpanRecord(Span.ROLLOUT, began, began + 10))
    page.write_span(Party.ROLLOUT, SpanRecord(Span.HELD, began, began + 10))
    wait_for(lambda: watch.work and watch.lease(monotonic_ns()))
    watch.stop()
    assert [span.kind for span in watch.work] == [Span.ROLLOUT]
    assert watch.leases[-1].number == 3
    assert watch.works_since(began) == began
    assert watch.works_since(began + 1) is None


def test_the_watch_goes_on_with_the_page_of_a_host_that_came_back_with_another_clock(tmp_path):
    places = [(tmp_path / "none", 0), (tmp_path / "first", 0), (tmp_path / "second", 100 * S)]
    pages = {}
    for name in ("first", "second"):
        pages[name] = ArbiterPage.create(tmp_path / name)
        pages[name].take(Party.ROLLOUT)
    at = [0]
    watch = PageWatch(lambda: places[at[0]])
    watch.start()
    expires_ns = monotonic_ns() + 60 * S
    for number, (path, ahead_ns) in enumerate(places):
        at[0] = number
        if path.exists():
            terms = LeaseTerms(number=1, expires_ns=expires_ns + ahead_ns, kv_budget_tokens=1, compute_share=1.0)
            pages[path.name].set_lease(terms)
        expected = [0, 1, PAGE + 1][number]
        wait_for(lambda expected=expected: watch.leases[-1].number == expected)
        assert watch.leases[-1].number == expected
    watch.stop()
    assert watch.leases[-1].expires_ns == expires_ns


def test_all_is_well_where_nothing_was_noticed():
    ledger = Books(leases=changes("granted", "released"), unaccounted_ns={"serving-one": 0, "serving-other": 0})
    figures, detail = claimed(seen(), ledger)
    assert all(claim.holds for claim in figures.values()), figures
    assert detail["trials"][0]["lending_again_s"] == 5.0
    assert detail["by_cause"]["agents killed"]["device_back_s"] == {"median": 2.0, "worst": 2.0}
    assert detail["by_cause"]["agents killed"]["lost"] == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"served": [request(9, 11, failed=True)]}, "serving requests failed because of a fault"),
        ({"served": [request(1, 2), request(9, 11, late=True)]}, "over budget after a fault, more than without"),
        ({"health": [asked(1), asked(11, well=False)]}, "/health not answered after a fault, more than without"),
        ({"trials": [trial(anew=("other",))]}, "serving started anew"),
        ({"work": both([work(9, 13.5)])}, "device back with serving, worst trial"),
        ({"trials": [trial(lending_s=None)]}, "trials after which lending came back"),
        ({"planned": 2}, "trials carried out"),
        ({"ended": True}, "faults that ended the fleet"),
        ({"trials": [trial(wrong=("1 turns counted twice",))]}, "trials after which something was wrong in the ledger"),
    ],
)
def test_what_goes_wrong_is_a_claim_that_does_not_hold(changed, name):
    figures, _ = claimed(seen(**changed))
    assert [claim.name.strip() for claim in figures.values() if not claim.holds] == [name]


def changes(*actions, number=4, at_s=11, device_id="serving-one"):
    return [LeaseChanged(device_id, number, action, None, at_s * 1_000_000) for action in actions]


def test_a_fault_leaves_its_trace_in_the_ledger():
    killed = trial(fault=Fault(Victim.SERVER, "one", "idle", 0.0))
    assert Books().trace(killed) is None
    assert Books(leases=changes("released", at_s=30)).trace(killed) is None, "long after"
    assert Books(leases=changes("released", device_id="serving-other")).trace(killed) is None, "another device"
    assert "lease released" in str(Books(leases=changes("released")).trace(killed))
    assert "lease released" in str(Books(leases=changes("released")).trace(trial(lease=PAGE + 4)))
    died = EngineChanged("serving-one-rollout", "died", 77, "the process ended", 11 * 1_000_000)
    assert Books(engines=[died]).trace(killed) == "engine died (the process ended)"


def slice_of(device_id, t0_s, t1_s):
    zeros = {f"{bucket}_ns": 0 for bucket in BUCKETS}
    return DeviceSlice(device_id=device_id, **{**zeros, "idle_ns": (t1_s - t0_s) * S}, t0_ns=t0_s * S, t1_ns=t1_s * S)


def turn(number, **changes):
    facts = {"trajectory_id": "t", "turn": number, "outcome": "completed", "prompt_tokens": 1, "output_tokens": 2}
    rest = {
        "attempt": 0,
        "placement": "queue",
        "policy_version": 0,
        "queue_ns": 0,
        "duration_ns": 1,
        "cached_tokens": 0,
    }
    return Turn(**{**facts, **rest, **changes})


def test_the_books_are_read_from_a_ledger_and_come_whole_from_the_host_that_has_it(tmp_path):
    with LedgerWriter.open(tmp_path / "ledger", "agent", "faults-1") as writer:
        ids = {"device_id": "serving-one", "engine_id": "serving-one-rollout", "lease_id": "faults-1-serving-one-4"}
        terms = {"kv_budget_bytes": 1, "compute_share": 1.0, "expires_at_us": utc_us()}
        for action in ("granted", "expired"):
            writer.record(Lease(action=action, **ids, **terms))
        writer.record(Engine(engine_id="serving-one-rollout", action="died", role="rollout", model="m", pid=77))
        for event in (slice_of("d", 1, 2), slice_of("d", 2, 3), slice_of("d", 4, 5)):
            writer.record(event)
        for event in (turn(0), turn(1), turn(1, attempt=1)):
            writer.record(event)
        lost = {"trajectory_id": "t", "group_id": "g", "task": "frozenlake", "turns": 3, "outcome": "finished"}
        zeros = dict.fromkeys(("step", "policy_version", "staleness"), 0)
        spent = {"prompt_tokens": 1, "output_tokens": 6, "answer_tokens": 6, "duration_ns": 1}
        writer.record(Trajectory(**lost, **zeros, **spent))
    ledger = msgspec.json.decode(msgspec.json.encode(books.read(tmp_path / "ledger")), type=Books)
    assert [(change.device_id, change.number) for change in ledger.leases] == [("serving-one", 4)] * 2
    assert [(engine.action, engine.pid) for engine in ledger.engines] == [("died", 77)]
    assert ledger.gaps == [Gap("d", 3 * S, 4 * S)]
    assert {name: len(rows) for name, rows in ledger.wrong.items() if rows} == {
        "turns counted twice": 1,
        "trajectories that lost a turn or its tokens": 1,
    }
    assert ledger.tables["turns"][0]["turns"] == 3
    assert ledger.problems == []
    assert ledger.now_wrong() == ["1 turns counted twice"]


def runs_seen():
    """Facts of a fleet in order."""
    runs = [{"run_id": "fleet", "fleet_run_id": "fleet", "name": "fleet", "status": "ended", "team": "platform"}]
    runs += [
        {"run_id": team.name, "fleet_run_id": "fleet", "name": team.name, "status": "ended", "team": team.name}
        for team in TEAMS
    ]
    syncs = [
        {"device_id": "serving-other", "rl_run_id": "research", "source": "relay", "route": setting.ROUTE},
        {"device_id": "serving-one", "rl_run_id": "agents", "source": "relay", "route": setting.ROUTE},
        {"device_id": "rollout-one", "rl_run_id": "research", "source": "trainer", "route": "loopback"},
    ]
    lines = [("fleet", "platform", 5), ("research", "research", 3), ("agents", "agents", 2)]
    cost = {
        by: {"bill_nano": 10, "lines": [{by: line[column], "cost_nano": line[2]} for line in lines]}
        for column, by in enumerate(("run", "team"))
    }
    tables = {
        "runs": runs,
        "steps": [{"run_id": team.name, "steps": 4} for team in TEAMS],
        "turns": [{"device_id": device_id, "outcome": "completed"} for device_id in setting.HOST_OF],
        "syncs": [{**sync, "ok": True, "syncs": 3} for sync in syncs],
        "shared": [{"device_id": "serving-one", "rollout_run_id": team.name} for team in TEAMS],
        "writers": [{"writer": "other.agent", "events": 7}, {"writer": "one.agent", "events": 9}],
    }
    charges = [{"run_id": run_id, "team": team, "cost_nano": nano} for run_id, team, nano in lines]
    return claims.RunsSeen(
        books=Books(
            wrong={"turns counted twice": []},
            unaccounted_ns=dict.fromkeys(setting.DEVICES.values(), 0),
            tables=tables,
            bill={"charges": charges, "nano": 10, "exact_nano": 10.0, "rounded": 2},
        ),
        writers_there=[{"writer": "other.agent", "events": 7}],
        costs=cost,
        report={view: {"total": {"value": 10}} for view in ("amortized", "fully_loaded")},
        fences=(1, 2),
        steps_told={team.name: 4 for team in TEAMS},
        clock_is_known=dict.fromkeys(setting.HOST_OF, True),
        samples={"controller": [Sample(number, 1, 100) for number in range(9)]},
    )


def failed(facts):
    report = Report("fleet", quick=True)
    claims.claim_runs(report, facts, long=True)
    return [claim.name.strip() for claim in report.claims if not claim.holds]


def test_claims_of_two_runs_hold_only_while_the_books_are_in_order():
    assert failed(runs_seen()) == []
    facts = runs_seen()
    facts.books.bill["charges"][0].update(cost_nano=6)
    facts.books.tables["syncs"][0].update(route="loopback")
    facts.steps_told.update(agents=5)
    assert failed(facts) == [
        "steps that trainers and ledger do not both know",
        "charges of runs and teams, less the bill",
        "syncs with another source or route than theirs",
    ]


def test_the_fleet_file_of_each_kind_of_engines_can_be_used():
    for engines in setting.ENGINE_KINDS:
        config = Setting(engines).config()
        assert {device.host for device in config.device} == set(setting.HOSTS)
        lent = [device for device in config.device if device.pool == "serving"]
        assert [device.serving_url is None for device in lent] == [engines == "sglang"] * 2
