"""A fleet on two hosts, as namespaces of this machine. Ray and agents are real."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from tests.runtime import hosts
from tests.runtime.conftest import until
from tests.runtime.hosts import Host, Network
from tests.runtime.service.own_serving import SHAPE

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(900),
    pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing())),
]

RAY = str(Path(sys.executable).with_name("ray"))
RAY_PORT = 6379
CONTROLLER_PORT = 30100
TOKEN = "a-token-of-the-tests"
URL = f"http://10.77.0.1:{CONTROLLER_PORT}"
DOORS = """
import json, sys, urllib.error, urllib.request
def status(path):
    try:
        return urllib.request.urlopen(sys.argv[1] + path, data=b"{}", timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([status(path) for path in ("/generate", "/update_weights_from_disk")]))
"""


def fleet_file(*, hosts: bool) -> str:
    def device(name: str, host: str, pool: str, core: int, more: str = "") -> str:
        named = f'host = "{host}"\n' if hosts else ""
        kind = f'pool = "{pool}"\ndevice_class = "cpu-core"\ncores = [{core}]\nkv_bytes = 1000000\n'
        return f'[[device]]\nid = "{name}"\n{named}{kind}{more}'

    tables = ""
    for number, name in enumerate(("one", "other") if hosts else (), 1):
        tables += f'[[host]]\nname = "{name}"\naddress = "10.77.0.{number}"\n'
    served = 'serving_url = "http://127.0.0.1:30000"\n'
    tables += device("s1", "one", "serving", 0, served)
    if hosts:
        tables += device("s2", "other", "serving", 0, served)
    return f"""
name = "two"
ledger = "/srv/ledger"
state = "/srv/state"
cache = "/srv/cache"
{tables}{device("r2", "other", "rollout", 1)}
[serving]
model = "/srv/model"
[rollout]
model = "/srv/model"
[coserving]
heartbeat_s = 0.2
meter_s = 0
drift_audit_s = 0
[traffic]
trace = "none"
[gateway]
host = "{"0.0.0.0" if hosts else "127.0.0.1"}"
port = {CONTROLLER_PORT}
token = "{TOKEN}"
"""


FLEET = fleet_file(hosts=True)
TURN = """
import json, sys, torch
from rose import client
with client.open_run("http://10.77.0.1:30100", name="trainer", model="/srv/model", token=sys.argv[1]) as run:
    run.publish({"model.norm.weight": torch.ones(32)})
    (generation,) = run.generate([[1, 2, 3]], {"max_new_tokens": int(sys.argv[2])})
print(json.dumps([generation.output_ids, [attempt.engine_id for attempt in generation.attempts]]))
"""


#: As `rose status --json`, which takes seconds to load: a line of it for each line that it reads.
STATUS = """
import http.client, json, sys
for _ in sys.stdin:
    try:
        connection = http.client.HTTPConnection(sys.argv[2], int(sys.argv[3]), timeout=10)
        connection.request("GET", "/status", headers={"Authorization": "Bearer " + sys.argv[1]})
        print(json.dumps(json.load(connection.getresponse())["devices"]), flush=True)
    except OSError:
        print([], flush=True)
"""
#: A trainer that goes away and says nothing: it opens a run, or makes a turn of the one that is named.
TRAINER = """
import json, os, sys, torch
from rose import client
token, url, *named = sys.argv[1:]
opened = {"name": "trainer", "model": "/srv/model", "token": token, "expires_s": 3600}
run = client.open_run(url, **opened, resume=named[0] if named else None)
run.publish({"model.norm.weight": torch.ones(32)})
if named:
    (generation,) = run.generate([[1, 2, 3]], {"max_new_tokens": 4})
print(json.dumps(generation.output_ids if named else run.run_id), flush=True)
os._exit(0)
"""


class TwoHosts:
    def __init__(self, network: Network) -> None:
        self.network, self.one, self.other = network, network.add(), network.add(clock_ahead_s=50_000)
        program = [sys.executable, "-c", STATUS, TOKEN, self.one.address, str(CONTROLLER_PORT)]
        self._asking = subprocess.Popen(self.one.command(program), stdin=PIPE, stdout=PIPE, text=True, bufsize=1)
        for host in (self.one, self.other):
            (host.disk / "model").mkdir()
            (host.disk / "model" / "config.json").write_text(json.dumps(SHAPE))
            (host.disk / "fleet.toml").write_text(FLEET)
            self.begin(host)

    def begin(self, host: Host) -> None:
        with (host.disk / "serving.log").open("a") as log:
            host.start(sys.executable, "-m", "tests.runtime.service.stand_ins", "serving", output=log)
        self.start_ray(host)

    def start_ray(self, host: Host) -> None:
        head = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        where = head if host is self.one else [f"--address={self.one.address}:{RAY_PORT}"]
        usual = [f"--node-ip-address={host.address}", "--disable-usage-stats", "--num-cpus=0"]
        usual += ["--no-monitor", "--include-log-monitor=false"]
        # Ray takes a host for lost after five checks: 53 seconds where nothing answers, 3 where all is refused.
        host.call(RAY, "start", *where, *usual, RAY_health_check_period_ms="500")

    def up(self) -> str:
        address = f"{self.one.address}:{RAY_PORT}"
        program = ["-m", "tests.runtime.service.stand_ins", "up", "/srv/fleet.toml", address]
        return self.one.call(sys.executable, *program)

    def rose(self, *arguments: str) -> str:
        return self.one.call(sys.executable, "-m", "rose.cli", *arguments, COLUMNS="160")

    def status(self) -> dict[str, dict]:
        assert self._asking.stdin is not None
        assert self._asking.stdout is not None
        self._asking.stdin.write("\n")
        return {device["device_id"]: device for device in json.loads(self._asking.stdout.readline())}

    def alive(self, device_id: str) -> bool:
        return any(engine["alive"] for engine in self.status().get(device_id, {"engines": []})["engines"])

    def turns(self, device_id: str) -> int:
        return sum(engine["in_flight"] for engine in self.status().get(device_id, {"engines": []})["engines"])

    def pids(self) -> dict[str, str]:
        found = {}
        for host in (self.one, self.other):
            for line in host.call("ps", "-eo", "pid,args", "--no-headers").splitlines():
                if match := re.match(r" *(\d+) ray::(ControllerActor|HostActor)", line):
                    found[f"{match[2]} on {host.name}"] = match[1]
        return found

    def engine(self) -> str:
        (line,) = [line for line in self.other.processes(pids=True) if "stand_ins rollout" in line and "/r2/" in line]
        return line.split()[0]

    def runs(self) -> list[str]:
        return [row["run_id"] for row in self.query("SELECT run_id FROM run WHERE fleet_run_id = run_id")]

    def query(self, sql: str) -> list[dict]:
        with catalog.connect(self.one.disk / "ledger") as connection:
            return connection.sql(sql).pl().to_dicts()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[TwoHosts]:
    with Network(tmp_path_factory.mktemp("network")) as network:
        two = TwoHosts(network)
        assert "ready http://10.77.0.1:30100" in two.up()
        yield two


def test_each_host_has_its_devices_and_a_turn_goes_to_the_other_host(fleet):
    until(lambda: set(fleet.status()) == {"s1", "s2", "r2"} and fleet.alive("r2"))
    assert json.loads(fleet.one.python(TURN, TOKEN, "4")) == [[3, 4, 5, 6], ["r2-rollout"]]
    assert set(fleet.pids()) == {"ControllerActor on host-1", "HostActor on host-1", "HostActor on host-2"}
    lines = fleet.one.call("ps", "-eo", "ni,args", "--no-headers").splitlines()
    assert [line.split()[0] for line in lines if "ray::HostActor" in line] == [str(os.getpriority(os.PRIO_PROCESS, 0))]
    (port,) = set(re.findall(r"rollout (\d+) /\S*/r2/", "\n".join(fleet.other.processes())))
    assert json.loads(fleet.one.python(DOORS, f"http://{fleet.other.address}:{port}")) == [401, 404]


def test_events_of_the_other_host_come_over_the_network_into_the_one_ledger(fleet):
    joined = "SELECT device_id FROM event WHERE kind = 'device' AND action = 'joined' GROUP BY 1 ORDER BY 1"
    until(lambda: [row["device_id"] for row in fleet.query(joined)] == ["r2", "s1", "s2"])
    assert not (fleet.other.disk / "ledger" / "deployment").exists()
    # The controller tells of turns, clocks and holds; its host tells all else of a device.
    told = "SELECT DISTINCT writer FROM event WHERE device_id IN ('s2', 'r2') AND {} ORDER BY 1"
    assert fleet.query(told.format("kind NOT IN ('turn', 'clock', 'hold')")) == [{"writer": "other.agent"}]
    assert fleet.query(told.format("kind = 'clock'")) == [{"writer": "one.controller"}]
    hosts = fleet.query("SELECT device_id, host FROM clock WHERE action = 'heard' GROUP BY ALL ORDER BY 1")
    assert hosts == [
        {"device_id": "r2", "host": "other"},
        {"device_id": "s1", "host": "one"},
        {"device_id": "s2", "host": "other"},
    ]


def test_parts_that_are_killed_come_back_where_they_were(fleet):
    before, engine = fleet.pids(), fleet.engine()
    for name, pid in before.items():
        (fleet.one if name.endswith("host-1") else fleet.other).call("kill", "-9", pid)

    def are_new() -> bool:
        pids = fleet.pids()
        # Each host numbers its processes by itself, so a name belongs to the number.
        return pids.keys() == before.keys() and not pids.items() & before.items()

    until(are_new)
    found = fleet.pids()
    assert "runs: keeping its healthy parts" in fleet.up()
    until(lambda: fleet.alive("r2"))
    assert (fleet.engine(), fleet.pids()) == (engine, found)


@pytest.mark.long
def test_agents_of_a_host_are_started_anew_and_its_engine_goes_on(fleet):
    before, engine = fleet.pids(), fleet.engine()
    address = f"{fleet.one.address}:{RAY_PORT}"
    fleet.rose("restart", "other", "-c", "/srv/fleet.toml", "--address", address)
    changed = {name for name, pid in fleet.pids().items() if before[name] != pid}
    assert changed == {"HostActor on host-2"}
    until(lambda: fleet.alive("r2"))
    assert fleet.engine() == engine


def test_a_line_that_is_cut_and_mended_costs_no_part(fleet):
    before = fleet.pids()
    fleet.other.unplug()
    until(lambda: not fleet.alive("r2"))
    assert fleet.status()["r2"]["not_lent"] is not None
    assert "s1" in fleet.status()
    fleet.other.plug_in()
    until(lambda: fleet.alive("r2"))
    assert fleet.pids() == before


@pytest.mark.long
def test_a_turn_goes_on_though_its_host_loses_its_power_under_it(fleet):
    tokens = 1000  # Ten seconds of it.
    with (fleet.one.disk / "turn.json").open("w") as output:
        trainer = fleet.one.start(sys.executable, "-c", TURN, TOKEN, str(tokens), output=output)
    until(lambda: fleet.turns("r2") == 1)
    fleet.other.kill()
    until(lambda: not fleet.alive("r2"))
    fleet.other.boot()
    fleet.begin(fleet.other)
    fleet.up()
    until(lambda: fleet.alive("r2"))
    ended, printed = trainer.wait(240), (fleet.one.disk / "turn.json").read_text()
    assert ended == 0, printed
    output_ids, engines = json.loads(printed.splitlines()[-1])
    assert output_ids == list(range(3, 3 + tokens))
    assert (engines[0], len(engines) > 1) == ("r2-rollout", True)
    # What the lost host made is nobody's, and what was made in its place counts once.
    newest = "run_id = (SELECT run_id FROM turn ORDER BY event_time DESC LIMIT 1)"
    made = f"SELECT sum(output_tokens)::BIGINT AS tokens FROM turn WHERE {newest}"
    until(lambda: fleet.query(made) == [{"tokens": tokens}])


@pytest.mark.long
def test_the_loss_of_rays_head_loses_no_fleet(fleet):
    (run_id,) = fleet.runs()
    fleet.one.call("pkill", "-9", "gcs_server")
    fleet.one.call("pkill", "-9", "raylet")
    until(lambda: not [name for name in fleet.pids() if name.endswith("host-1")])
    fleet.other.call("pkill", "-9", "raylet")
    until(lambda: not fleet.pids())
    engine = fleet.engine()
    fleet.start_ray(fleet.one)
    fleet.start_ray(fleet.other)
    fleet.up()
    until(lambda: fleet.alive("r2"))
    assert fleet.runs() == [run_id]
    assert fleet.engine() == engine


def test_down_ends_all_of_it_and_leaves_a_sound_ledger(fleet):
    address = f"{fleet.one.address}:{RAY_PORT}"
    fleet.rose("down", "-c", "/srv/fleet.toml", "--address", address)
    assert fleet.pids() == {}
    lines = [line for host in fleet.network.hosts for line in host.processes()]
    assert [line for line in lines if "stand_ins rollout" in line] == []
    assert len([line for line in lines if "stand_ins serving" in line]) == 2
    assert [Ledger(host.disk / "ledger").verify().problems for host in fleet.network.hosts] == [[], []]
    of_the_fleet = "SELECT action FROM event WHERE kind = 'run' AND fleet_run_id IS NULL ORDER BY event_time"
    assert [row["action"] for row in fleet.query(of_the_fleet)] == ["started", "ended"]
    left = fleet.query("SELECT device_id FROM event WHERE kind = 'device' AND action = 'left' GROUP BY 1 ORDER BY 1")
    assert [row["device_id"] for row in left] == ["r2", "s1", "s2"]
