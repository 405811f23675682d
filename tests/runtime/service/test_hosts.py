"""The hosts that tests run fleets on share nothing that they can write to, and meet by address alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.service import hosts
from tests.runtime.service.hosts import ROOT, Network

pytestmark = pytest.mark.skipif(hosts.missing() is not None, reason=str(hosts.missing()))

_CLOCK_AHEAD_S = 100_000

_ANSWER = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
while True:
    connection = server.accept()[0]
    connection.sendall(b"here")
    connection.close()
"""
_ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 7000), timeout=1) as connection:
        print(connection.recv(4).decode())
except OSError as error:
    print("no answer")
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Iterator[Network]:
    with Network(tmp_path_factory.mktemp("network")) as network:
        network.add()
        network.add(clock_ahead_s=_CLOCK_AHEAD_S, clock_is_set=hosts.clock_library() is not None)
        yield network


def asked(asking: hosts.Host, address: str) -> str:
    return asking.python(_ASK, address).strip()


@pytest.mark.parametrize("folder", ["/dev/shm", "/tmp", "/var/tmp", "/srv", "/run"])
def test_what_one_writes_the_other_does_not_see(network, folder):
    one, other = network.hosts
    note = f"written-by-{os.getpid()}"  # a name that nobody else has in this machine's own folder
    one.call("sh", "-c", f"echo here > {folder}/{note}")
    assert one.call("cat", f"{folder}/{note}") == "here\n"
    assert note not in other.call("ls", folder).split()
    assert folder == "/srv" or not Path(folder, note).exists()


def test_what_they_share_can_only_be_read(network):
    one, _ = network.hosts
    for folder in ("/", "/etc", "/var/lib", ROOT):
        assert "Read-only" in one.call("sh", "-c", f"touch {folder}/note 2>&1 || true")


def test_each_has_processes_a_name_and_a_monotonic_clock_of_its_own(network):
    one, other = network.hosts
    assert len(one.processes()) < 6
    assert [host.call("hostname").strip() for host in network.hosts] == ["host-1", "host-2"]
    ahead = [float(host.python("import time; print(time.monotonic())")) - time.monotonic() for host in (one, other)]
    assert ahead[1] - ahead[0] == pytest.approx(_CLOCK_AHEAD_S, abs=60)


def test_each_is_reached_by_its_address_alone_and_not_while_its_line_is_cut(network):
    one, other = network.hosts
    with (network.folder / "server.log").open("w") as log:
        server = other.start(hosts.sys.executable, "-c", _ANSWER, "0.0.0.0", output=log)
    while asked(one, other.address) != "here":
        assert server.poll() is None
    assert asked(other, "127.0.0.1") == "here"
    # What listens everywhere on one listens on no loopback of the other.
    assert asked(one, "127.0.0.1") == "no answer"
    other.unplug()
    assert asked(one, other.address) == "no answer"
    assert asked(other, "127.0.0.1") == "here"
    other.plug_in()
    while asked(one, other.address) != "here":
        assert server.poll() is None


def test_one_that_is_killed_loses_its_processes_and_its_memory_and_keeps_its_disk(network):
    one, other = network.hosts
    for folder in ("/srv", "/dev/shm"):
        other.call("sh", "-c", f"echo here > {folder}/kept")
    running = other.start("sleep", "2000", output=hosts.subprocess.DEVNULL)
    other.kill()
    assert running.wait(10) != 0
    assert not other.up
    other.boot()
    assert other.call("cat", "/srv/kept") == "here\n"
    assert "kept" not in other.call("ls", "/dev/shm").split()
    assert "sleep 2000" not in other.processes()
    assert one.up


_CLOCKS = "import time; print(time.time(), time.monotonic())"


@pytest.mark.skipif(hosts.clock_library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("ahead_s", [3600.75, -7200.25, 0])
def test_a_hosts_wall_clock_can_be_set_and_nothing_else_of_it(network, ahead_s):
    one, other = network.hosts
    other.set_clock(ahead_s)
    for host, wall_s, monotonic_s in ((one, 0, 0), (other, ahead_s, _CLOCK_AHEAD_S)):
        wall, monotonic = map(float, host.python(_CLOCKS).split())
        assert abs(wall - time.time() - wall_s) < 30
        assert abs(monotonic - time.monotonic() - monotonic_s) < 30
