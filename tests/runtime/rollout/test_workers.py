"""Worker processes, killed in the middle of their games, against a real controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rose import client
from rose.config import TaskConfig
from rose.runtime.rollout.worker import Game, Setting
from rose.runtime.rollout.workers import Workers
from tests.client.fleet import MODEL, fleet
from tests.runtime.training.frozenlake_fleet import engine

GAMES = [Game(trajectory_id=f"g{n // 4}-{n}", group_id=f"g{n // 4}", map_seed=n // 4, number=n) for n in range(8)]


def setting(run):
    task = TaskConfig(size=3, turns_max=3, trajectories_max=8)
    return Setting(address=run.address, task=task, temperature=1.0, nice=0)


def announced(there):
    """A run whose first version is where nobody fetches it."""
    run = client.open_run(there.url, name="n", model=MODEL)
    run._call("POST", "/versions", {"version": 0, "url": "http://127.0.0.1:9"})
    return run


def collect(workers, games):
    played = []
    deadline = time.monotonic() + 60
    while len(played) < games:
        assert time.monotonic() < deadline
        played += workers.collect(0.2)
    return played


def test_games_of_a_worker_that_died_are_played_again_under_other_names(tmp_path):
    said = []
    moving = engine(tmp_path / "staging", pause_s=0.1)
    moving.fetch = None
    with (
        fleet(tmp_path / "state", moving) as there,
        announced(there) as run,
        Workers(setting(run), 2, said.append) as workers,
    ):
        workers.play(0, 0, GAMES)
        while not moving.requests:
            time.sleep(0.01)
        os.kill(workers._workers[0].process.pid, signal.SIGKILL)
        played = collect(workers, len(GAMES))
    names = sorted(item.trajectory.trajectory_id for item in played)
    assert [name.partition("~")[0] for name in names] == [game.trajectory_id for game in GAMES]
    assert sum("~" in name for name in names) == 4  # those of its one group
    assert {item.trajectory.outcome for item in played} <= {"finished", "truncated"}
    assert said == ["a rollout worker died (exit code -9) and is started again"]


def test_what_the_controller_refuses_ends_the_workers_with_its_words(tmp_path):
    with fleet(tmp_path / "state") as there, announced(there) as run:
        with Workers(setting(run), 1, lambda _: None) as workers:
            run.close()
            workers.play(0, 0, GAMES)
            with pytest.raises(client.RunEndedError, match=f"run '{run.run_id}' is closed"):
                collect(workers, len(GAMES))


#: Starts a worker, says its process id, and waits to be killed.
TRAINER = """
import time
from pathlib import Path
from rose.client import RunAddress
from rose.config import TaskConfig
from rose.runtime.rollout.worker import Setting
from rose.runtime.rollout.workers import Workers

address = RunAddress(url="http://127.0.0.1:9", run_id="r", fence=1)
workers = Workers(Setting(address=address, task=TaskConfig(), temperature=1.0, nice=0), 1, print)
print(workers._workers[0].process.pid, flush=True)
time.sleep(60)
"""


def test_workers_end_with_their_trainer(tmp_path):
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True)
    pid = int(trainer.stdout.readline())
    trainer.kill()
    trainer.communicate()
    deadline = time.monotonic() + 20
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
