import time

import pytest

from rose import client
from rose.config import TaskConfig
from rose.runtime.rollout.players import Game, Players, Task
from tests.client.fleet import MODEL, fleet
from tests.runtime.training.frozenlake_fleet import engine

GAMES = [Game(trajectory_id=f"g{n // 4}-{n}", group_id=f"g{n // 4}", seed=n // 4, number=n) for n in range(8)]
TASK = Task(TaskConfig(size=3, turns_max=3, trajectories_max=4))


def announced(service):
    run = client.open_run(service.url, name="n", model=MODEL)
    run._call("POST", "/versions", {"version": 0, "url": "http://127.0.0.1:9"})
    return run


def collect(players, games):
    played, deadline = [], time.monotonic() + 60
    while len(played) < games:
        assert time.monotonic() < deadline
        played += players.collect(0.2)
    return played


def test_games_are_played_and_played_again_under_other_names_until_the_run_is_closed(tmp_path):
    moving = engine(tmp_path / "staging")
    moving.fetch = None
    with fleet(tmp_path / "state", moving) as service, announced(service) as run:
        with Players(run.address, TASK, None, 1.0) as players:
            players.play(0, 0, GAMES)
            played = collect(players, len(GAMES))
            assert sorted(item.game.trajectory_id for item in played) == [game.trajectory_id for game in GAMES]
            assert {item.trajectory.outcome for item in played} <= {"finished", "truncated"}
            players.play_again(0, 0, GAMES[:2])
            assert {item.trajectory.trajectory_id for item in collect(players, 2)} == {"g0-0~1", "g0-1~1"}
            run.close()
            players.play(1, 0, GAMES)
            with pytest.raises(client.RunEndedError, match=f"run '{run.run_id}' is closed"):
                collect(players, 1)


def test_what_is_still_played_is_given_up_at_the_end(tmp_path):
    moving = engine(tmp_path / "staging", pause_s=1.0)
    moving.fetch = None
    with fleet(tmp_path / "state", moving) as service, announced(service) as run:
        with Players(run.address, TASK, None, 1.0) as players:
            players.play(0, 0, GAMES)
            while not moving.requests:
                time.sleep(0.01)
        assert not players._background._thread.is_alive()
