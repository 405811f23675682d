"""TCP ports for servers that bind them only later, such as an engine that loads its model first.

They are outside the kernel's ephemeral range, from which any process gets a port for an outgoing connection. Ray's
workers listen below them (10002 to 19999) and SGLang's ranks meet above them (22000 to 29999).
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import ExitStack
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

    Raises UserError if there is none, or if this host has not all of these addresses.
    """
    hosts = hosts or ("127.0.0.1",)
    ports = outside_ephemeral()
    for port in random.SystemRandom().sample(ports, len(ports)):
        if (claimed := _claimed(port)) is None:
            continue
        with ExitStack() as unless_given:
            unless_given.callback(claimed.close)
            if all(_can_listen(host, port) for host in hosts):
                unless_given.pop_all()
                _claims.append(claimed)
                return port
    raise UserError(
        f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} is free on {' and '.join(hosts)}: stop what listens "
        "there, or name ports in the fleet file"
    )


def claim(port: int) -> bool:
    """Have no call of `free_port`, of whichever process, give a port while this process lives; False if another has
    claimed it, or this one before."""
    if (claimed := _claimed(port)) is None:
        return False
    _claims.append(claimed)
    return True


def _claimed(port: int) -> socket.socket | None:
    """The claim to a port, until it is closed; None if it is another's."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rose-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


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
    """Raises UserError for an address at which no port can be listened on."""
    try:
        listen_once(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise UserError(
            f"no server can listen on {host}: {error.strerror}; name an address that this host has"
        ) from None
    return True
