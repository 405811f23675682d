"""Actors as their own processes see them: what they load."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

from rose.clock import Anchor
from rose.events import Engine
from rose.ledger import catalog
from rose.runtime import actors
from rose.runtime.notices import AgentReport

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


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
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


def test_an_agent_that_is_asked_how_its_device_is_names_the_engines_that_died(tmp_path, monkeypatch):
    """With an agent that only sees its engine die; the place is this process's own."""
    died = Engine(device_id="d", engine_id="e", action="died", role="rollout", model="m", pid=7, reason="killed")

    def agent(spec, record, failure):
        record(died)
        return SimpleNamespace(check=lambda: "d: the rollout engine died", stop=lambda: None)

    monkeypatch.setattr(actors, "DeviceAgent", agent)
    monkeypatch.setattr(actors.Place, "take", lambda place: None)
    place = actors.Place(ledger=tmp_path / "ledger", run_id="r", anchor=Anchor.take())
    actor = actors.AgentActor(place, SimpleNamespace(device=SimpleNamespace(id="d")))
    assert actor.check() == AgentReport(
        "d: the rollout engine died", ("engine e (process 7) died and is started again: killed",)
    )
    actor.stop()
    with catalog.connect(tmp_path / "ledger") as connection:
        assert connection.execute("SELECT engine_id, action FROM engine").fetchall() == [("e", "died")]
