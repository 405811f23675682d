"""A part of a fleet ends with its Ray node, at once and whatever the host's clock said before."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.service import hosts
from tests.runtime.service.hosts import Host, Network

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing())),
    pytest.mark.skipif(hosts.clock_library() is None, reason="no C compiler: no host can have a clock of its own"),
]

RAY = str(Path(sys.executable).with_name("ray"))
#: A part whose work goes on for ever; it prints its process.
PLACE = """
import os, time
from pathlib import Path
import ray
from rose.runtime.service import vital
from rose.runtime.service.fabric import Fabric
class Part:
    def __init__(self):
        self.thread = vital.start_part("work", lambda: time.sleep(3600), Path("/srv/part.log"))
    def pid(self):
        return os.getpid()
fabric = Fabric("fleet")
fabric.join("10.77.0.1:6379")
part = fabric.place("part", Part, resource=f"node:{fabric.node_address}")
print(fabric.ask(part, "pid", timeout_s=60))
"""


@pytest.fixture
def host(tmp_path) -> Iterator[Host]:
    with Network(tmp_path) as network:
        yield network.add(clock_is_set=True)


def test_a_part_ends_with_its_ray_node_though_the_wall_clock_was_set_back(host):
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
