"""A fleet on one host, with a Ray of its own: who started it may be killed, and Ray too."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.runtime import hosts
from tests.runtime.hosts import Host, Network
from tests.runtime.service.test_two_hosts import FLEET, GO_ON, OPEN, RAY, SHAPE, TOKEN, json

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(900),
    pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing())),
]

ONE = re.sub(r"\[\[host\]\]\n.*\n.*\n|host = \"(one|other)\"\n", "", FLEET).replace(
    'id = "s2"', 'id = "s2"\n# serves elsewhere'
)
ONE = re.sub(r"\[\[device\]\]\nid = \"s2\"(.*\n){7}", "", ONE).replace('host = "0.0.0.0"', 'host = "127.0.0.1"')
ROSE = (sys.executable, "-m", "rose.cli")
URL = "http://127.0.0.1:30100"
RUN_EVENTS = "SELECT fleet_run_id IS NOT NULL AS rl, action, reason FROM event WHERE kind = 'run' ORDER BY event_time"
UP = (sys.executable, "-m", "tests.runtime.service.stand_ins", "up", "/srv/fleet.toml")


def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def running(host: Host, what: str) -> list[str]:
    """The numbers of the processes of a name."""
    return [line.split()[0] for line in host.processes(pids=True) if what in line and "ps -ww" not in line]


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[Host]:
    with Network(tmp_path_factory.mktemp("network")) as network:
        host = network.add()
        (host.disk / "model").mkdir()
        (host.disk / "model" / "config.json").write_text(json.dumps(SHAPE))
        (host.disk / "fleet.toml").write_text(ONE)
        with (host.disk / "serving.log").open("w") as log:
            host.start(sys.executable, "-m", "tests.runtime.service.stand_ins", "serving", output=log)
        yield host


def test_who_starts_it_may_be_killed_in_the_middle(host):
    with (host.disk / "up.log").open("w") as log:
        starting = host.start(*UP, output=log)
    until(lambda: running(host, "ray::ControllerActor") != [] or starting.poll() is not None)
    host.call("pkill", "-9", "-f", "stand_ins up")
    assert starting.wait(10) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert "ready http://127.0.0.1:30100" in host.call(*UP)
    assert len(running(host, "raylet/raylet")) == len(running(host, "ray::HostActor")) == 1
    status = json.loads(host.call(sys.executable, "-m", "rose.cli", "status", "-c", "/srv/fleet.toml", "--json"))
    assert {device["device_id"] for device in status["devices"]} == {"s1", "r2"}


def test_whoever_has_no_token_of_its_ray_runs_nothing_there(host):
    address = json.loads((host.disk / "state" / "two" / "ray.json").read_text())["address"]
    program = f"import ray; ray.init(address={address!r}, log_to_driver=False)"
    done = subprocess.run(
        host.command([sys.executable, "-c", program], {"HOME": "/tmp"}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "token" in done.stderr.lower()


def run_of(host: Host) -> dict:
    (run,) = json.loads(host.call(*ROSE, "runs", "-c", "/srv/fleet.toml", "--json"))
    return run


def test_whoever_stays_puts_the_fleet_down_with_its_runs_kept(host):
    opened = json.loads(host.python(OPEN, TOKEN, URL))
    host.call(*ROSE, "drain", "s1", "--reason", "new driver", "-c", "/srv/fleet.toml")
    with (host.disk / "stay.log").open("w") as log:
        staying = host.start(*ROSE, "up", "-c", "/srv/fleet.toml", "--stay", "--down-on-stop", output=log)
    until(lambda: "controller at" in (host.disk / "stay.log").read_text())
    (agents,) = running(host, "ray::HostActor")
    host.call("kill", "-9", agents)
    until(lambda: running(host, "ray::HostActor") not in ([], [agents]))
    assert staying.poll() is None
    host.call("pkill", "-TERM", "-f", "rose.cli up")
    assert staying.wait(240) == 0, (host.disk / "stay.log").read_text()
    assert running(host, "raylet/raylet") == running(host, "stand_ins rollout") == []
    assert "ready http://127.0.0.1:30100" in host.call(*UP)
    assert (run_of(host)["run_id"], run_of(host)["state"]) == (opened, "open")
    status = json.loads(host.call(*ROSE, "status", "-c", "/srv/fleet.toml", "--json"))
    assert [device["device_id"] for device in status["devices"] if device["drained"]] == ["s1"]
    assert json.loads(host.python(GO_ON, TOKEN, URL, opened)) == [3, 4, 5, 6]


def test_the_controller_is_started_anew_and_the_run_goes_on(host):
    (before,) = running(host, "ray::ControllerActor")
    run_id = run_of(host)["run_id"]
    host.call(*ROSE, "restart", "controller", "-c", "/srv/fleet.toml")
    (after,) = running(host, "ray::ControllerActor")
    assert after != before
    assert run_of(host)["run_id"] == run_id
    until(lambda: json.loads(host.python(GO_ON, TOKEN, URL, run_id)) == [3, 4, 5, 6])


def test_its_ray_may_be_killed_and_the_rollout_engine_goes_on(host):
    engine, *_ = [line for line in host.processes(pids=True) if "stand_ins rollout" in line and "/r2/" in line]
    for name in ("raylet", "gcs_server"):
        host.call("pkill", "-9", name)
    until(lambda: not running(host, "ray::HostActor"))
    assert "starting Ray" in host.call(*UP)
    assert engine in host.processes(pids=True)


def test_down_that_is_killed_in_the_middle_is_completed_and_ends_all_but_serving(host):
    with (host.disk / "down.log").open("w") as log:
        ending = host.start(*ROSE, "down", "-c", "/srv/fleet.toml", output=log)
    remembered = host.disk / "state" / "two" / "fleet.json"
    until(lambda: json.loads(remembered.read_text())["ending"] == "end")
    host.call("pkill", "-9", "-f", "rose.cli down")
    assert ending.wait(10) != 0
    assert "fleet 'two' was put down" in host.call(*ROSE, "down", "-c", "/srv/fleet.toml")
    assert running(host, "raylet/raylet") == running(host, "stand_ins rollout") == []
    assert len(running(host, "stand_ins serving")) == 1
    assert not [path for path in host.call("ls", "/dev/shm").split() if path.startswith("rose-fleet")]
    again = host.call(sys.executable, "-m", "rose.cli", "down", "-c", "/srv/fleet.toml")
    assert again == "no fleet 'two' runs here\n"
    events = host.call(*ROSE, "sql", "--ledger", "/srv/ledger", "--json", RUN_EVENTS)
    ended = [(event["rl"], event["action"], event["reason"]) for event in json.loads(events)[-2:]]
    assert ended == [(True, "ended", "the fleet was ended"), (False, "ended", None)]
    assert "sound" in host.call(sys.executable, "-m", "rose.cli", "ledger", "verify", "--ledger", "/srv/ledger")


#: A part whose work goes on for ever; it prints its process.
PLACE = """
import os, time
from pathlib import Path
import ray
from rose.runtime.service import process
from rose.runtime.service.fabric import Fabric
class Part:
    def __init__(self):
        self.thread = process.start_part("work", lambda: time.sleep(3600), Path("/srv/part.log"))
    def pid(self):
        return os.getpid()
fabric = Fabric("fleet")
fabric.join("10.77.0.1:6379")
part = fabric.place("part", Part, resource=f"node:{fabric.node_address}")
print(fabric.ask(part, "pid", timeout_s=60))
"""


@pytest.fixture
def set_clock_host(tmp_path) -> Iterator[Host]:
    with Network(tmp_path) as network:
        yield network.add(clock_is_set=True)


@pytest.mark.skipif(hosts.clock_library() is None, reason="no C compiler: no host can have a clock of its own")
def test_a_part_ends_with_its_ray_node_though_the_wall_clock_was_set_back(set_clock_host):
    host = set_clock_host
    where = ["--head", "--port=6379", "--include-dashboard=false", f"--node-ip-address={host.address}"]
    host.call(RAY, "start", *where, "--disable-usage-stats", "--num-cpus=2")
    pid = host.python(PLACE).strip()
    # Ray's own timers go by it: what they are set to meanwhile is an hour away afterwards.
    host.set_clock(3600)
    time.sleep(5)
    host.set_clock(0)
    assert pid in host.call("pgrep", "-f", "ray::Part").split()
    host.call("pkill", "-9", "raylet")
    deadline = time.monotonic() + 30
    while "ray::Part" in "".join(host.processes()):
        assert time.monotonic() < deadline, "it lives on without a node"
        time.sleep(0.2)
    assert "its Ray node has ended" in (host.disk / "part.log").read_text()
