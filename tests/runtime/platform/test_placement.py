import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rose.runtime.platform import placement

#: A process under a title, with a thread; it starts another when it reads a line, and says their ids.
PROGRAM = """
import sys, threading, setproctitle
setproctitle.setproctitle(sys.argv[1])
def start():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    print(thread.native_id, flush=True)
start()
sys.stdin.readline()
start()
sys.stdin.readline()
"""


@pytest.fixture
def titled():
    started = []

    def start(title, prefix=()):
        process = subprocess.Popen(
            [*prefix, sys.executable, "-c", PROGRAM, title],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()


def more(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def standing(thread):
    return os.sched_getaffinity(thread), os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)


def place(processes, **changes):
    cores = sorted(os.sched_getaffinity(0))
    how = {"cores": cores[:1], "host_cores": cores[-1:], "nice": 7, "idle_class": True}
    placement.place([psutil.Process(process.pid) for process in processes], **{**how, **changes})
    return {cores[0]}, {cores[-1]}


def test_schedulers_go_to_the_device_and_all_else_to_the_host(titled):
    scheduler, computing = titled("sglang::scheduler_TP0")
    detokenizer, writing = titled("sglang::detokenizer")
    device, host = place([scheduler, detokenizer])
    for thread in (scheduler.pid, computing, more(scheduler)):
        assert standing(thread) == (device, os.SCHED_IDLE, os.getpriority(os.PRIO_PROCESS, 0))
    for thread in (detokenizer.pid, writing, more(detokenizer)):
        assert standing(thread) == (host, os.SCHED_OTHER, 7)


def test_a_scheduler_that_started_below_serving_has_its_starter_s_niceness_in_the_idle_class(titled):
    own, cores = os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(0))
    scheduler, computing = titled("sglang::scheduler", placement.start_prefix(cores[-1:], own + 3))
    assert standing(computing) == ({cores[-1]}, os.SCHED_OTHER, own + 3)
    device, _ = place([scheduler])
    lowers = os.geteuid() == 0
    assert standing(computing) == standing(more(scheduler)) == (device, os.SCHED_IDLE, own if lowers else own + 3)


def test_without_the_idle_class_a_scheduler_has_the_niceness(titled):
    scheduler, computing = titled("sglang::scheduler")
    device, _ = place([scheduler], idle_class=False)
    assert standing(computing) == standing(more(scheduler)) == (device, os.SCHED_OTHER, 7)


def test_a_session_of_its_own_weighs_least_on_cores_that_it_shares_with_serving(titled):
    scheduler, _ = titled("sglang::scheduler")
    autogroup = Path(f"/proc/{scheduler.pid}/autogroup")
    if not autogroup.exists() or not autogroup.read_text().strip():
        pytest.skip("this kernel has no autogroups")
    place([scheduler])
    assert autogroup.read_text().split()[-1] == "19"
    place([scheduler], host_cores=sorted(os.sched_getaffinity(0))[:1])
    assert autogroup.read_text().split()[-1] == "5"


@pytest.mark.skipif(os.geteuid() != 0, reason="the system lets nobody else leave the idle class")
def test_a_scheduler_may_leave_the_idle_class(titled):
    scheduler, computing = titled("sglang::scheduler_TP0")
    place([scheduler])
    device, _ = place([scheduler], idle_class=False)
    for thread in (scheduler.pid, computing):
        assert standing(thread) == (device, os.SCHED_OTHER, 7)
