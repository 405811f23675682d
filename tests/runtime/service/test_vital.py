"""A part whose work has ended by what nobody foresaw is a process that has ended, and says why."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

_BEGIN = """
import sys, time
from pathlib import Path
from rose.config import FleetConfig
from tests.runtime.service.fleet_here import fleet
folder = Path(sys.argv[1])
config = fleet(folder)
"""
_CONTROLLER = """
from rose.runtime.service.controller import ControllerActor, ControllerPlan
actor = ControllerActor(ControllerPlan(
    config=config, run_id="r", port={port}, state={state}, logs=folder / "logs", ledger=folder / "ledger",
    cores={cores},
))
"""
_KEEPER = """
from rose.runtime.service.keeper import Keeper
actor = Keeper(config.model_copy(update={"tags": object()}), "127.0.0.1")
"""
_HOST = """
from rose.runtime.service.host import HostActor, HostPlan
actor = HostActor(HostPlan(config=config, host="local", run_id={"no text"}, controller_url=""))
"""
_STAY = "time.sleep(60)\n"


@pytest.mark.parametrize(
    ("program", "log"),
    [
        (_CONTROLLER.format(port=1, cores=(), state=repr("no path")), "logs/controller.log"),
        pytest.param(_KEEPER, "state/f/logs/keeper.log", marks=pytest.mark.long),
        pytest.param(_HOST, "state/f/local/logs/host.log", marks=pytest.mark.long),
    ],
    ids=["controller", "keeper", "host"],
)
def test_what_nobody_foresaw_ends_the_process_and_is_in_its_log(tmp_path, program, log):
    command = [sys.executable, "-c", _BEGIN + program + _STAY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    text = (tmp_path / log).read_text()
    assert "Traceback" in text
    assert "Error" in text


@pytest.mark.long
def test_a_controller_that_may_not_choose_its_cores_and_niceness_says_so_and_listens(tmp_path):
    # As Ray starts its workers; without the right to go back.
    fewer = [] if os.geteuid() else [shutil.which("setpriv"), "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"]
    program = (
        _BEGIN
        + _CONTROLLER.format(port="config.gateway.port", cores=(100_000,), state='folder / "state"')
        + textwrap.dedent("""
        while actor.report()[0]:
            time.sleep(0.05)
        actor.stop()
    """)
    )
    before = os.getpriority(os.PRIO_PROCESS, 0)
    command = [*fewer, "nice", "-n", "15", sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "logs" / "controller.log").read_text()
    assert "cannot run on the host's cores [100000]" in text
    assert "cannot have niceness 10" in text
    assert f"keeps {min(before + 15, 19)}: start Ray with RAY_worker_niceness=0" in text
    assert "listening on" in text
