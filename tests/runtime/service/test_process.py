import json
import socket
import subprocess
import sys

import duckdb
import pytest

from rose import private_files
from rose.runtime import places
from rose.runtime.errors import FolderError
from rose.runtime.scheduling.runs.answers import AnswerStore
from rose.runtime.service import controller, process
from rose.runtime.service.controller import ControllerActor, ControllerPlan
from rose.runtime.service.memory import FleetMemory
from tests import programs
from tests.runtime.conftest import until
from tests.runtime.service.fleet_here import fleet

_CONTROLLER = """
import sys, time
from pathlib import Path
from rose.runtime.service.controller import ControllerActor, ControllerPlan
from tests import programs
from tests.runtime.service.fleet_here import fleet
folder = Path(sys.argv[1])
actor = ControllerActor(ControllerPlan(
    config=fleet(folder), run_id="r", port=1, host_tokens="no tokens"
))
time.sleep(60)
"""


def test_what_nobody_foresaw_ends_the_process_and_is_in_its_log(tmp_path):
    assert programs.run(_CONTROLLER, tmp_path)[0] == 1
    text = (tmp_path / "state" / "f" / "logs" / "controller.log").read_text()
    assert "Traceback" in text
    assert "Error" in text


def test_a_part_ends_with_its_ray_node_and_says_so(tmp_path):
    program = """
import os, subprocess, sys, time
from pathlib import Path
from rose.runtime.service import process
node = subprocess.Popen(["sleep", "60"])
os.environ["RAY_RAYLET_PID"] = str(node.pid)
process.start_part("work", lambda: time.sleep(60), Path(sys.argv[1]))
node.kill()
time.sleep(60)
"""
    assert programs.run(program, tmp_path / "part.log")[0] == 1
    assert "ends with its Ray node" in (tmp_path / "part.log").read_text()


def test_an_engine_s_log_is_emptied_where_it_lies_and_goes_on(tmp_path):
    log = tmp_path / "engine.log"
    with log.open("ab") as output:
        program = "import sys\nfor line in sys.stdin: print(line * 100, end='', flush=True)"
        engine = subprocess.Popen(
            [sys.executable, "-uc", program], stdin=subprocess.PIPE, stdout=output, text=True, bufsize=1
        )
    assert engine.stdin is not None
    engine.stdin.write("before\n")
    while log.stat().st_size < 700:
        pass
    process.rotate(tmp_path, bytes_max=699)
    assert (tmp_path / "engine.old.log").read_text() == "before\n" * 100
    engine.stdin.write("after\n")
    engine.stdin.close()
    assert engine.wait() == 0
    assert log.read_text() == "after\n" * 100
    process.rotate(tmp_path, bytes_max=699)
    assert log.read_text() == "after\n" * 100


def test_a_process_s_own_log_keeps_the_last_few(tmp_path):
    say = process.log_to(tmp_path / "logs" / "host.log", bytes_max=200)
    for number in range(100):
        say(f"line {number}")
    assert process.log_to(tmp_path / "logs" / "host.log", bytes_max=200) is not None
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["host.log", *(f"host.log.{number}" for number in range(1, process.LOGS_KEPT + 1))]
    assert "line 99" in (tmp_path / "logs" / "host.log").read_text()


def test_a_folder_of_logs_that_cannot_be_made_is_named_with_the_field_that_it_is_of(tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(FolderError, match=f"state: {tmp_path}/logs cannot be created .* set `state` "):
        process.log_to(tmp_path / "logs" / "controller.log")


TURN = {
    **dict.fromkeys(("step", "turn", "attempt", "policy_version", "cached_tokens", "queue_ns"), 0),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "duration_ns"), 1),
    **dict.fromkeys(("answer_tokens", "lease_id")),
    **{"run_id": "r", "fleet_run_id": "fleet", "trajectory_id": "t", "group_id": "g", "engine_id": "e"},
    **{"event_id": "made/0", "device_id": "d", "placement": "queue", "outcome": "completed"},
    "at_us": 1_800_000_000_000_000,
}


def test_a_controller_whose_port_is_taken_records_no_turn_anew_until_it_is_free(tmp_path, monkeypatch):
    monkeypatch.setattr(controller, "_AGAIN_S", 0.05)
    config = fleet(tmp_path)
    plan = ControllerPlan(config=config, run_id="fleet", port=config.gateway.port)
    kept = AnswerStore(private_files.make(FleetMemory(config).controller))
    kept.keep("r", "k", b"", b"{}", json.dumps([TURN]).encode())
    kept.close()
    log = FleetMemory(config).folder / "logs" / "controller.log"
    with socket.create_server((config.gateway.host, plan.port)):
        actor = ControllerActor(plan)
        until(lambda: log.exists() and log.read_text().count("cannot listen on") >= 3)
    until(lambda: not actor.report().doing)
    actor.stop(False)
    until(lambda: not actor._thread.is_alive())
    rows = f"SELECT count(*) FROM read_parquet('{places.ledger(config)}/live/*/*/*.parquet') WHERE event_id = 'made/0'"
    assert duckdb.execute(rows).fetchall() == [(1,)]
