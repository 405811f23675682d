import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from rose.runtime.engines import adoption
from rose.runtime.engines.adoption import UNKNOWN_EXIT, DetachedProcess, EngineRecord, spec_sha256, start_detached
from rose.runtime.engines.sglang import EngineProcess
from tests.runtime.conftest import engine_spec


@pytest.fixture
def spec(tmp_path):
    return engine_spec(tmp_path, orphan_s=600.0)


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_record_leads_to_its_process_and_to_no_other(tmp_path, sleeper):
    record = EngineRecord.of_process(sleeper.pid, 30000, "spec")
    record.write(tmp_path / "page")
    assert EngineRecord.read(tmp_path / "page") == record
    assert record.process().pid == sleeper.pid
    assert list(adoption.living(tmp_path)) == [record]
    assert replace(record, start_ticks=record.start_ticks - 1).process() is None
    assert replace(record, boot_id="another").process() is None
    sleeper.kill()
    assert DetachedProcess.open(sleeper.pid).wait(10) == UNKNOWN_EXIT
    assert record.process() is None, "it has ended, although nobody has asked how"
    assert list(adoption.living(tmp_path)) == []
    with pytest.raises(ProcessLookupError):
        EngineRecord.of_process(sleeper.pid, 1, "spec")


def test_a_process_that_is_nobodys_child_is_waited_for_and_signalled(sleeper):
    process = DetachedProcess.open(sleeper.pid)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == process.poll() == UNKNOWN_EXIT
    sleeper.wait()
    process.send_signal(signal.SIGTERM)
    assert DetachedProcess.open(sleeper.pid) is None


def test_an_engine_is_the_one_of_a_spec_whatever_port_it_was_given(spec):
    same = replace(spec, port=2, any_port=True, log=spec.log.with_name("other"), start_cores=[1], orphan_s=1.0)
    assert spec_sha256(same) == spec_sha256(spec)
    assert spec_sha256(replace(spec, extra_args=["--mem-fraction-static=0.3"])) == spec_sha256(spec)
    for change in ({"model": "n"}, {"max_total_tokens": 2}, {"cores": [98, 99]}, {"extra_args": ["--x"]}, {"nice": 3}):
        assert spec_sha256(replace(spec, **change)) != spec_sha256(spec)


def test_an_engine_that_is_not_there_is_not_adopted_and_one_that_is_can_be_ended(spec, sleeper):
    record = EngineRecord.of_process(sleeper.pid, 1, "spec")
    engine = EngineProcess(spec)
    assert not engine.adopt(replace(record, boot_id="another"))
    assert not engine.alive
    assert engine.adopt(record)
    assert engine.alive
    assert engine.pid == sleeper.pid


def test_a_detached_program_outlives_the_thread_and_has_a_session_of_its_own(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        script = "import os, sys, time; print(sys.argv[1], os.environ['WORD'], flush=True); time.sleep(600)"
        pid = start_detached(["-c", script, "word"], {**os.environ, "WORD": "another"}, log)
    process = DetachedProcess.open(pid)
    try:
        assert os.getsid(pid) == os.getpgid(pid) == pid
        assert pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    finally:
        os.killpg(pid, signal.SIGKILL)
        process.wait(10)


_BUSY = "import os; os.sched_setaffinity(0, {%d}); os.sched_setscheduler(0, %s, os.sched_param(0)); print(flush=True)"


def test_one_that_was_killed_is_ending_although_it_has_no_core_to_end_on():
    core = min(os.sched_getaffinity(0))
    busy = [
        subprocess.Popen([sys.executable, "-c", _BUSY % (core, kind) + "\nwhile True: pass"], stdout=subprocess.PIPE)
        for kind in ("os.SCHED_IDLE", "os.SCHED_OTHER")
    ]
    try:
        for process in busy:
            process.stdout.readline()
        idle = busy[0].pid
        assert not adoption.is_ending(idle)
        os.kill(idle, signal.SIGKILL)
        assert adoption.is_ending(idle)
        busy[0].wait()
        assert adoption.is_ending(idle)
    finally:
        for process in busy:
            process.kill()
            process.wait()
            process.stdout.close()
