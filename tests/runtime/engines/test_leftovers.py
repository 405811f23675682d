import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rose.runtime.engines import leftovers
from rose.runtime.engines.leftovers import LOGS_KEPT, UNUSED_AFTER_S, is_unused, remove_unused, shift_logs


def test_the_logs_of_engines_before_are_kept_up_to_a_bound(tmp_path):
    log = tmp_path / "gpu-0.1-rollout.log"
    for number in range(LOGS_KEPT + 3):
        shift_logs(log)
        log.write_text(str(number))
    assert len(list(tmp_path.iterdir())) == LOGS_KEPT + 1
    assert log.read_text() == str(LOGS_KEPT + 2)
    assert (tmp_path / "gpu-0.1-rollout.1.log").read_text() == str(LOGS_KEPT + 1)
    assert (tmp_path / f"gpu-0.1-rollout.{LOGS_KEPT}.log").read_text() == "2"


@pytest.fixture
def left(monkeypatch):
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
        remove_unused()
    assert [path.exists() for path in (loads, queue, semaphore)] == [False, False, True]
    assert unknown.exists(), "nothing says whose it is"
    assert ours.exists(), "its creator lives"
