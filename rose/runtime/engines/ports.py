"""TCP ports for servers that bind them only later, such as an engine that loads its model first.

They are outside the kernel's ephemeral range, from which any process gets a port for an outgoing connection. Ray's
workers listen below them (10002 to 19999) and SGLang's ranks meet above them (22000 to 29999).
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from rose.errors import UserError

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORTS = range(20_000, 22_000)

#: A port is claimed by the name of an abstract socket, which nobody else on this network can bind while the process
#: lives, and which ends with it.
_claims: list[socket.socket] = []


def free_port(*hosts: str) -> int:
    """A port that a server can listen on at all `hosts`, loopback if none are named, and that no other call gives while
    this process lives.

    Raises UserError if there is none.
    """
    hosts = hosts or ("127.0.0.1",)
    ports = outside_ephemeral()
    for port in random.SystemRandom().sample(ports, len(ports)):
        if claim(port) and all(_can_listen(host, port) for host in hosts):
            return port
    raise UserError(
        f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} is free on {' and '.join(hosts)}: stop what listens "
        "there, or name ports in the fleet file"
    )


def claim(port: int) -> bool:
    """Have no call of `free_port`, of whichever process, give a port while this process lives; False if another has
    claimed it, or this one before."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rose-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def outside_ephemeral() -> list[int]:
    """The ports to choose from that the kernel gives to no outgoing connection; all of them where it may give any."""
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999
    return [port for port in _PORTS if not first <= port <= last] or list(_PORTS)


def listen_once(host: str, port: int) -> None:
    """Raises OSError if a server cannot listen there now."""
    socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()


def _can_listen(host: str, port: int) -> bool:
    try:
        listen_once(host, port)
    except OSError:
        return False
    return True
