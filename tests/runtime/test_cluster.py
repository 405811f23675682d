"""A local Ray, seen from outside: what it writes where the user looks, and which GPUs its processes are let see."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import os, signal, time
from rose.runtime.cluster import Cluster, PartDiedError

class Part:
    def pid(self):
        return os.getpid()

    def visible(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def wait(self):
        time.sleep(600)

cluster = Cluster()
cluster.start()
part = cluster.spawn(Part)
import ray  # which is told what to print before
print("visible", ray.get(part.visible.remote()))
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


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    # As older versions of Ray do by themselves: an actor that asks for no GPU sees none.
    hidden = {"CUDA_VISIBLE_DEVICES": "0,1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, **hidden},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def test_ray_leaves_it_to_the_supervisor_to_say_that_a_part_died(done: subprocess.CompletedProcess[str]) -> None:
    assert "died" in done.stdout.splitlines()
    assert "worker died" not in done.stderr


def test_an_actor_sees_the_gpus_that_the_deployment_sees(done: subprocess.CompletedProcess[str]) -> None:
    assert "visible 0,1" in done.stdout.splitlines()
