import json
import signal
import sys
from collections.abc import Iterator

import pytest

from rose.ledger.ledger import Ledger
from tests.ledger.conftest import ask
from tests.runtime import hosts
from tests.runtime.conftest import until
from tests.runtime.hosts import Host, Network
from tests.runtime.service.own_serving import SHAPE
from tests.runtime.service.test_two_hosts import TOKEN, TRAINER, fleet_file

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(900),
    pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing())),
]

ROSE = (sys.executable, "-m", "rose.cli")
URL = "http://127.0.0.1:30100"
RUN_EVENTS = "SELECT fleet_run_id IS NOT NULL AS rl, action, reason FROM event WHERE kind = 'run' ORDER BY event_time"
UP = (sys.executable, "-m", "tests.runtime.service.stand_ins", "up", "/srv/fleet.toml")


def running(host: Host, what: str) -> list[str]:
    return [line.split()[0] for line in host.processes(pids=True) if what in line and "ps -ww" not in line]


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Iterator[Host]:
    with Network(tmp_path_factory.mktemp("network")) as network:
        host = network.add()
        (host.disk / "model").mkdir()
        (host.disk / "model" / "config.json").write_text(json.dumps(SHAPE))
        (host.disk / "fleet.toml").write_text(fleet_file(hosts=False))
        with (host.disk / "serving.log").open("w") as log:
            host.start(sys.executable, "-m", "tests.runtime.service.stand_ins", "serving", output=log)
        yield host


@pytest.mark.long
def test_who_starts_it_may_be_killed_in_the_middle(host):
    with (host.disk / "up.log").open("w") as log:
        starting = host.start(*UP, output=log)
    until(lambda: running(host, "ray::ControllerActor") != [] or starting.poll() is not None)
    host.call("pkill", "-9", "-f", "stand_ins up")
    assert starting.wait(10) in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert "ready http://127.0.0.1:30100" in host.call(*UP)
    assert len(running(host, "raylet/raylet")) == len(running(host, "ray::HostActor")) == 1
    assert {device["device_id"] for device in status(host)["devices"]} == {"s1", "r2"}
    file = host.disk / "fleet.toml"
    file.write_text(file.read_text().replace("[serving]", "[serving]\nttft_budget_ms = 800"))
    assert host.call(*ROSE, "reload", "-c", "/srv/fleet.toml") == "serving.ttft_budget_ms: 500.0 -> 800.0\n"


@pytest.fixture(scope="module")
def opened(host) -> str:
    return json.loads(host.python(TRAINER, TOKEN, URL))


def status(host: Host) -> dict:
    return json.loads(host.call(*ROSE, "status", "-c", "/srv/fleet.toml", "--json"))


@pytest.mark.long
def test_whoever_stays_puts_the_fleet_down_with_its_runs_kept_and_a_new_controller_has_them(host, opened):
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
    known = status(host)
    assert [(run["run_id"], run["state"]) for run in known["runs"]] == [(opened, "open")]
    assert [device["device_id"] for device in known["devices"] if device["drained"]] == ["s1"]
    (before,) = running(host, "ray::ControllerActor")
    host.call(*ROSE, "restart", "controller", "-c", "/srv/fleet.toml")
    assert running(host, "ray::ControllerActor") not in ([], [before])
    assert json.loads(host.python(TRAINER, TOKEN, URL, opened)) == [3, 4, 5, 6]


@pytest.mark.long
def test_its_ray_may_be_killed_and_the_rollout_engine_goes_on(host):
    engine, *_ = [line for line in host.processes(pids=True) if "stand_ins rollout" in line and "/r2/" in line]
    assert status(host)["ray"] is None
    host.call("pkill", "-9", "gcs_server")
    until(lambda: status(host)["ray"] is not None)
    assert status(host)["ray"] in status(host)["warnings"]
    host.call("pkill", "-9", "raylet")
    until(lambda: not running(host, "ray::"))
    away = host.start(*ROSE, "status", "-c", "/srv/fleet.toml", output=(host.disk / "away.log").open("w"))
    assert away.wait(60) == 1
    assert "Ray's gcs_server and raylet ended on this host" in (host.disk / "away.log").read_text()
    assert "starting Ray" in host.call(*UP)
    assert engine in host.processes(pids=True)


@pytest.mark.long
def test_down_that_is_killed_in_the_middle_is_completed_and_ends_all_but_serving(host, opened):
    with (host.disk / "down.log").open("w") as log:
        ending = host.start(*ROSE, "down", "-c", "/srv/fleet.toml", output=log)
    remembered = host.disk / "state" / "two" / "fleet.json"
    until(lambda: json.loads(remembered.read_text())["ending"] == "end")
    host.call("pkill", "-9", "-f", "rose.cli down")
    assert ending.wait(10) != 0
    assert "fleet 'two' has ended" in host.call(*ROSE, "down", "-c", "/srv/fleet.toml")
    assert running(host, "raylet/raylet") == running(host, "stand_ins rollout") == []
    assert len(running(host, "stand_ins serving")) == 1
    left = host.call("ls", "/dev/shm", "/tmp").split()
    assert not [name for name in left if name.startswith(("rose-fleet", "rose-ray"))]
    assert host.call(*ROSE, "down", "-c", "/srv/fleet.toml") == "no fleet 'two' runs here\n"
    ended = ask(host.disk / "ledger", RUN_EVENTS)[-2:]
    assert ended == [(True, "ended", "the fleet was ended"), (False, "ended", None)]
    assert Ledger(host.disk / "ledger").verify().problems == []
