"""Actors as their own processes see them: what they load, and which GPUs they are let see."""

from __future__ import annotations

import os
import subprocess
import sys

#: A trainer's process, whose trainer only notes where it is to be.
TRAINER = """
import sys, types
from pathlib import Path
from rose.clock import Anchor
from rose.config import TrainingConfig
from rose.runtime import actors
import rose.runtime.training.trainer as module

class Noted:
    def __init__(self, checkpoint, training, device):
        print("device", device)

module.Trainer = Noted
folder = Path(sys.argv[1])
place = actors.Place(ledger=folder / "ledger", run_id="r", anchor=Anchor.take())
for gpu in (1, None):
    actor = actors.TrainerActor(place, "model", TrainingConfig(), folder / "store", folder / "page", gpu)
    print("stand-ins", "sgl_kernel" in sys.modules)
    actor.stop()
"""

ACTOR = """
import os
from rose.runtime.cluster import Cluster

class Looks:
    def visible(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

cluster = Cluster()
cluster.start()
call = cluster.spawn(Looks).visible.remote()
while not cluster.poll([call]):
    pass
print("visible", cluster.result(call))
cluster.stop()
"""


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_trainer_is_where_its_device_is_and_stand_ins_are_on_cores_only(tmp_path):
    lines = [line for line in run(TRAINER, tmp_path).splitlines() if line.startswith(("device ", "stand-ins "))]
    assert lines == ["device cuda:1", "stand-ins False", "device cpu", "stand-ins True"]


def test_an_actor_sees_the_gpus_that_the_deployment_sees():
    # As older versions of Ray do by themselves: an actor that asks for no GPU sees none.
    hidden = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
    assert "visible 0,1\n" in run(ACTOR, CUDA_VISIBLE_DEVICES="0,1", **hidden)
