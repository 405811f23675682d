import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rose.errors import UserError
from rose.runtime.engines import ports
from rose.runtime.engines.ports import free_port


@pytest.fixture
def few(monkeypatch):
    port = free_port()
    monkeypatch.setattr(ports, "_claims", [])
    monkeypatch.setattr(ports, "_PORTS", range(port + 42_000, port + 42_003))
    return ports._PORTS


def test_no_outgoing_connection_gets_one_before_its_server_binds_it():
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    given = {free_port() for _ in range(20)}
    assert len(given) == 20, "one is not given twice"
    assert not any(first <= port <= last for port in given)


def test_nor_does_another_process_while_the_one_that_asked_lives(few):
    give = (
        "import sys; from rose.runtime.engines import ports; "
        f"ports._PORTS = range({few.start}, {few.stop}); "
        "print(ports.free_port(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", give], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        theirs = int(it.stdout.readline())
        ours = {free_port(), free_port()}
        assert ours | {theirs} == set(few)
        with pytest.raises(UserError, match=f"none of the ports {few.start} to {few.stop - 1} is free on 127.0.0.1"):
            free_port()
    assert free_port() == theirs


def test_nor_is_one_given_that_somebody_had_before_and_claimed_again(few):
    assert ports.claim(few[0])
    assert not ports.claim(few[0])
    assert {free_port(), free_port()} == set(few[1:])


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_one_that_something_listens_on_is_not_given(few, host):
    with socket.create_server((host, few[0])):
        assert {free_port(), free_port()} == set(few[1:])


def test_an_address_that_is_another_host_s_is_said_and_costs_no_port(few):
    for hosts in (["203.0.113.1"], ["127.0.0.1", "203.0.113.1"]):
        with pytest.raises(UserError, match=r"listen on 203\.0\.113\.1: .*name an address that this host has"):
            free_port(*hosts)
    assert {free_port() for _ in few} == set(few)
