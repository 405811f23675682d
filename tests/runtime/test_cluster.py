"""A local Ray, seen from outside: what it writes where the user looks."""

from __future__ import annotations

import subprocess
import sys

_KILLED = """
import os, signal, time
from rose.runtime.cluster import Cluster, PartDiedError

class Part:
    def pid(self):
        return os.getpid()

    def wait(self):
        time.sleep(600)

cluster = Cluster()
cluster.start()
part = cluster.spawn(Part)
import ray  # which is told what to print before
pid = ray.get(part.pid.remote())
call = part.wait.remote()
os.kill(pid, signal.SIGKILL)
while not cluster.poll([call]):
    pass
try:
    cluster.result(call)
except PartDiedError as error:
    print("died")
# It is told of deaths in a thread of its own.
time.sleep(3)
cluster.stop()
"""


def test_ray_leaves_it_to_the_supervisor_to_say_that_a_part_died():
    done = subprocess.run([sys.executable, "-c", _KILLED], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "died\n"
    assert "worker died" not in done.stderr
