"""Finds free TCP ports from 20000 to 21999. Ray's workers use ports below this range, and SGLang's ranks above it."""

import errno
import random
import socket
from contextlib import ExitStack

from rose.errors import UserError

_PORTS = range(20_000, 22_000)

#: The name of an abstract socket claims a port. The name is unique on this network, and is gone when the process ends.
_claims: list[socket.socket] = []


def free_port(*hosts: str) -> int:
    """Return a port that is free on all `hosts` and reserved while this process lives. Raises UserError."""
    hosts = hosts or ("127.0.0.1",)
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if (claimed := _claimed(port)) is None:
            continue
        with ExitStack() as unless_given:
            unless_given.callback(claimed.close)
            if all(_can_listen(host, port) for host in hosts):
                unless_given.pop_all()
                _claims.append(claimed)
                return port
    raise UserError(
        f"none of the ports {_PORTS.start} to {_PORTS.stop - 1} is free on {' and '.join(hosts)}: stop programs that "
        "listen there, or name ports in the fleet file"
    )


def claim(port: int) -> bool:
    if (claimed := _claimed(port)) is None:
        return False
    _claims.append(claimed)
    return True


def _claimed(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rose-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def listen_once(host: str, port: int) -> None:
    socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()


def _can_listen(host: str, port: int) -> bool:
    try:
        listen_once(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise UserError(
            f"no server can listen on {host}: {error.strerror}; name an address that this host has"
        ) from None
    return True
