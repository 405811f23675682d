from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import psutil
import pytest

from rose.runtime.engines import leftovers
from rose.runtime.engines.leftovers import (
    LOGS_KEPT,
    UNUSED_AFTER_S,
    Segments,
    is_unused,
    remove_unused,
    segments,
    shift_logs,
)
from rose.runtime.engines.sglang import EngineProcess
from tests import strangers
from tests.runtime.conftest import ENVIRONMENT
from tests.runtime.engines.test_sglang import make_spec


def test_the_logs_of_engines_before_are_kept_up_to_a_bound(tmp_path):
    log = tmp_path / "gpu-0.1-rollout.log"
    for number in range(LOGS_KEPT + 3):
        shift_logs(log)
        log.write_text(str(number))
    assert len(list(tmp_path.iterdir())) == LOGS_KEPT + 1
    assert log.read_text() == str(LOGS_KEPT + 2)
    assert (tmp_path / "gpu-0.1-rollout.1.log").read_text() == str(LOGS_KEPT + 1)
    assert (tmp_path / f"gpu-0.1-rollout.{LOGS_KEPT}.log").read_text() == "2"


MAKES = """
import os, sys
loads, queue = f"/dev/shm/sglang_loads_{os.getpid():012x}_0.shm", f"/dev/shm/sgl_shm_mq_{os.getpid()}_0a1b2c3d"
files = [open(loads, "w"), open("/dev/shm/sglang_other.shm", "w")]
open(queue, "w").close()
print(loads, queue, flush=True)
sys.stdin.read()
"""


def test_segments_are_those_of_a_process_group_alone():
    """Named as SGLang names them; of two groups."""
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)
    ]
    try:
        for maker in makers:
            made = {Path(name) for name in maker.stdout.readline().split()}
            assert segments(maker.pid) == made
    finally:
        for maker in makers:
            made = segments(maker.pid)
            os.killpg(maker.pid, signal.SIGKILL)
            maker.wait()
            for path in made:
                path.unlink(missing_ok=True)
        Path("/dev/shm/sglang_other.shm").unlink()


def test_what_an_engine_left_whose_starter_died_too_is_removed_for_the_next_one(tmp_path):
    log, other = tmp_path / "engine.log", tmp_path / "other.log"
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    made = [Path(name) for name in maker.stdout.readline().split()]
    Segments(log).note(maker.pid)
    os.killpg(maker.pid, signal.SIGKILL)
    maker.wait()
    Segments(other).remove()
    assert all(path.exists() for path in made)
    Segments(log).remove()
    assert not any(path.exists() for path in made)
    assert Path("/dev/shm/sglang_other.shm").exists(), "not known to be SGLang's"
    Path("/dev/shm/sglang_other.shm").unlink()
    assert list(tmp_path.iterdir()) == []


SHARES = """
import multiprocessing, os, sys
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
if os.fork() == 0:
    os.setsid()
sys.stdin.read()
"""


def test_a_semaphore_is_removed_when_the_last_of_those_that_share_it_has_ended(tmp_path):
    log = tmp_path / "engine.log"
    maker = subprocess.Popen(
        [sys.executable, "-c", SHARES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    path = Path("/dev/shm", f"sem.{maker.stdout.readline().strip()[1:]}")
    note = Segments(log)
    deadline = time.monotonic() + 30
    while len(sharing := [pid for pid in psutil.pids() if shares(pid, path)]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    note.note(maker.pid)
    # With what Python has to remove it in the end.
    os.killpg(maker.pid, signal.SIGKILL)
    maker.wait()
    note.remove()
    assert path.exists()
    for pid in set(sharing) - {maker.pid}:
        os.kill(pid, signal.SIGKILL)
    while any(shares(pid, path) for pid in psutil.pids()):
        time.sleep(0.05)
    (tmp_path / ".engine.segments").write_text(path.name)
    Segments(log).remove()
    assert not path.exists()


@pytest.fixture
def left(monkeypatch):
    """Files as a process left them that was killed long ago, in a folder that stands for /dev/shm itself."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setattr(leftovers, "_SHARED_MEMORY", Path(folder))
        names = ("sglang_loads_0123456789ab_left.shm", "sgl_shm_mq_4194999_0a1b2c3d", "sem.mp-lefthere")
        made = [Path(folder, name) for name in names]
        for path in made:
            path.write_bytes(bytes(32))
            age(path)
        yield made


def age(path):
    then_s = time.time() - UNUSED_AFTER_S - 1
    os.utime(path, (then_s, then_s))


HAS = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 32)
print("mapped", flush=True)
sys.stdin.read()
"""


def test_what_no_process_has_is_unused(left):
    path = left[0]
    assert is_unused(path)
    maker = subprocess.Popen([sys.executable, "-c", HAS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert maker.stdout.readline() == b"mapped\n"
        assert not is_unused(path), "closed, and mapped still"
    finally:
        maker.kill()
        maker.wait()
    age(path)
    assert is_unused(path)
    with path.open("rb"):
        assert not is_unused(path)
    path.touch()
    assert not is_unused(path), "it is young"
    assert not is_unused(path.with_name("gone"))
    assert not is_unused(path.parent)


def test_segments_that_nobody_noted_are_removed_once_no_process_has_them(left):
    loads, queue, semaphore = left
    unknown = semaphore.with_name("sem.mp-lefthere.copy")
    ours = queue.with_name(f"sgl_shm_mq_{os.getpid()}_0a1b2c3d")
    for path in (unknown, ours):
        path.touch()
        age(path)
    with semaphore.open("rb"):
        assert remove_unused() == 2
    assert [path.exists() for path in (loads, queue, semaphore)] == [False, False, True]
    assert unknown.exists(), "nothing says whose it is"
    assert ours.exists(), "its creator lives"


def shares(pid, path):
    try:
        return f" {path.stat().st_ino} " in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.live
def test_an_engine_that_somebody_kills_leaves_no_shared_memory_and_its_log(tmp_path, tiny_policy, fork_server):
    other = shared_memory.SharedMemory(create=True, size=64, name=f"sgl_shm_mq_{os.getpid()}_abcdef01")
    resource_tracker.unregister(other._name, "shared_memory")
    _, spec = make_spec(tmp_path, tiny_policy, fork_server=fork_server.path, environment=ENVIRONMENT)
    spec.log.write_text("of the engine before")
    engine = EngineProcess(spec)
    try:
        engine.launch()
        engine.wait_ready()
        made = segments(engine.pid)
        assert made
        os.killpg(engine.pid, signal.SIGKILL)
        engine.kill()
        assert [path for path in made if path.exists()] == []
        assert Path("/dev/shm", other.name).exists()
        assert (tmp_path / "engine.1.log").read_text() == "of the engine before"
    finally:
        engine.kill()
        other.close()
        Path("/dev/shm", other.name).unlink()


_REMOVES_AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from rose.runtime.engines.leftovers import Segments
log = Path(sys.argv[1])
os.setuid(int(sys.argv[2]))
Segments(log).remove()
"""


@strangers.needs_another_user
def test_a_file_that_another_user_named_as_a_segment_keeps_no_engine_from_being_ended(tmp_path):
    """Here the other user is root, who owns the file, and the engine's is `nobody`."""
    foreign = Path(f"/dev/shm/sgl_shm_mq_{os.getpid()}_0a1b2c3d")
    foreign.touch()
    with strangers.everybodys_folder() as folder:
        (folder / ".engine.segments").write_text(foreign.name)
        (folder / ".engine.segments").chmod(0o644)
        os.chown(folder / ".engine.segments", strangers.UID, strangers.UID)
        command = [sys.executable, "-c", _REMOVES_AS_ANOTHER_USER, folder / "engine.log", str(strangers.UID)]
        try:
            subprocess.run(command, check=True)
            assert foreign.exists()
        finally:
            foreign.unlink()
