import json

import pytest

from rose.clock import utc_us
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import jobs
from rose.ledger.upkeep.jobs import Job, JobRun, history, ledger_jobs, record, run_job
from tests import programs
from tests.ledger.conftest import ask, decay

MINUTE_US = 60_000_000
DAY_MIN = 24 * 60


def told(ledger):
    return {"root": str(ledger.folder)}


def refuse(root):
    raise LedgerError("no room " * 1000)


def interrupted(root):
    raise KeyboardInterrupt


def succeeded(root, name, minutes_ago, **result):
    record(Ledger(root), JobRun(name, "ok", utc_us() - int(minutes_ago * MINUTE_US), 1, result=result))


def test_a_run_is_an_event_of_its_own(root):
    before_us = utc_us()
    done = run_job(Ledger(root), Job("told", told, 300))
    assert (done.job, done.status, done.result, done.error, done.missed) == ("told", "ok", {"root": str(root)}, None, 0)
    ((job, ok, result, error, missed, started_us, run_id, provenance),) = ask(
        root, "SELECT job, ok, result_json, error, missed, epoch_us(started_at), run_id, provenance FROM job"
    )
    assert (job, ok, json.loads(result), error, missed) == ("told", True, {"root": str(root)}, None, 0)
    assert (run_id, provenance) == ("ledger", "live")
    assert before_us <= started_us == done.started_us <= utc_us()
    assert Ledger(root).verify().doubts == []


def test_a_run_that_fails_is_an_event_too_and_is_not_raised(root):
    done = run_job(Ledger(root), Job("refused", refuse, 300))
    assert done.status == "failed"
    assert done.error.startswith("no room no room")
    assert ask(root, "SELECT ok, result_json, error, len(error) FROM job") == [(False, None, done.error, 2000)]
    good = run_job(Ledger(root), Job("refused", told, 300))
    assert run_job(Ledger(root), Job("refused", refuse, 300)).status == "failed"
    last = history(Ledger(root))["refused"]
    assert (last.ok, last.result_json, last.succeeded_us) == (False, None, good.started_us)
    assert run_job(Ledger(root), Job("refused", interrupted, 300)).error == "stopped before it was done"
    sorted(root.glob("live/job-refused/*/*.parquet"))[-1].write_bytes(b"damaged")
    done = run_job(Ledger(root), Job("refused", refuse, 300))
    assert "could not be recorded" in str(done.error)


def test_missed_runs_are_counted_and_caught_up_by_one(root):
    succeeded(root, "j", minutes_ago=36)
    job = Job("j", told, 300)
    assert jobs.due_us(job, history(Ledger(root))["j"], made_us=0) < utc_us() - 30 * MINUTE_US
    assert run_job(Ledger(root), job, only_if_due=True).missed == 6
    assert ask(root, "SELECT missed FROM job ORDER BY event_time") == [(0,), (6,)]
    done = run_job(Ledger(root), job, only_if_due=True)
    assert (done.status, "elsewhere" in str(done.error)) == ("skipped", True), "another scheduler did it"
    # By hand it runs all the same, and a clock that was put back does not stop it for good.
    assert run_job(Ledger(root), job).missed == 0
    succeeded(root, "j", minutes_ago=-60)
    assert jobs.due_us(job, history(Ledger(root))["j"], made_us=0) <= utc_us()
    assert run_job(Ledger(root), job, only_if_due=True).status == "ok"


def test_a_job_that_never_ran_waits_an_interval_from_when_the_ledger_was_made(root):
    job = Job("j", told, 300)
    made_us = jobs.made_us(Ledger(root))
    assert abs(made_us - utc_us()) < 30 * MINUTE_US
    assert jobs.due_us(job, None, made_us) == made_us + 5 * MINUTE_US
    assert jobs.due_us(job, None, utc_us() + MINUTE_US) <= utc_us(), "made later than now: a clock was put back"
    run_job(Ledger(root), Job("j", refuse, 300))
    assert jobs.due_us(job, history(Ledger(root))["j"], made_us) <= utc_us(), "what failed is tried again"


_HOLDER = """
import sys, time
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import Job, run_job
def run(ledger):
    print("running", flush=True)
    time.sleep(60)
run_job(Ledger(sys.argv[1]), Job("j", run, 300))
"""


def test_a_job_runs_once_at_a_time_and_a_killed_one_is_caught_up(root):
    succeeded(root, "j", minutes_ago=16)
    with programs.started(_HOLDER, root) as (holder, output):
        assert output.readline() == "running\n"
        done = run_job(Ledger(root), Job("j", told, 300))
        assert (done.status, done.error) == ("skipped", f"already running in the process with pid {holder.pid}")
        assert run_job(Ledger(root), Job("other", told, 300)).status == "ok"
        holder.kill()
    done = run_job(Ledger(root), Job("j", told, 300), only_if_due=True)
    assert (done.status, done.missed) == ("ok", 2)
    assert ask(root, "SELECT count(*) FROM job WHERE job = 'j'") == [(2,)]
    assert Ledger(root).verify().doubts == []


def test_what_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="is not a ledger"):
        run_job(Ledger(tmp_path), Job("j", told, 300))
    with pytest.raises(LedgerError, match="is not a ledger"):
        history(Ledger(tmp_path))


def by_name(**archive):
    return {job.name: job for job in ledger_jobs(**archive)}


def test_the_ledger_s_own_jobs_do_their_work(root, tmp_path):
    todo = by_name(to=str(tmp_path / "cold"), after_days=90)
    assert list(todo) == ["compact", "roll-up", "audit", "archive"]
    assert todo["compact"].every_s == 300
    assert [run_job(Ledger(root), job).error for job in todo.values()] == [None] * 4
    last = history(Ledger(root))
    assert json.loads(last["compact"].result_json or "")["merged_segments"] == 0
    assert json.loads(last["audit"].result_json or "")["events"] >= 1
    for half in ({"to": "cold"}, {"after_days": 9}, {"delete": True}):
        with pytest.raises(LedgerError, match="--archive-"):
            ledger_jobs(**half)


@pytest.mark.parametrize(
    ("every_byte_ago_min", "reads_all"), [(6 * DAY_MIN, False), (7 * DAY_MIN - 1, True), (-60, True)]
)
def test_an_audit_reads_every_byte_once_a_week_whenever_it_was_started(root, every_byte_ago_min, reads_all):
    Ledger(root).verify()
    succeeded(root, "audit", every_byte_ago_min, every_byte=True)
    succeeded(root, "audit", 1.5 * DAY_MIN, every_byte=False)
    decay(sorted(root.glob("live/w/000000/*"))[-1], root)
    assert run_job(Ledger(root), by_name()["audit"]).status == ("failed" if reads_all else "ok")


def test_an_audit_says_whether_it_read_every_byte_and_the_next_one_finds_what_it_found(root):
    audit = by_name()["audit"]
    assert [run_job(Ledger(root), audit).result for _ in range(2)] == [
        {"writers": 1, "events": 1, "every_byte": True},
        {"writers": 2, "events": 2, "every_byte": False},
    ]
    path = sorted(root.glob("live/w/000000/*"))[-1]
    decay(path, root)
    assert run_job(Ledger(root), audit).status == "ok", "what is known and looks unchanged is not read"
    assert Ledger(root).verify().doubts
    assert str(path.relative_to(root)) in run_job(Ledger(root), audit).error
