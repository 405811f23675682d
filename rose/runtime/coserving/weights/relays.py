"""A host's relays: what an origin on another host has comes over the network once, for all engines of this one."""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import secrets
import shutil
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from rose.runtime.coserving.weights.sync import Target
from rose.runtime.transfer.wire.origin_rules import OriginRules
from rose.runtime.transfer.wire.relay import RelayServer

#: A relay for each origin of late: runs come and go, and a client that begins anew has another port. So many folders of
#: theirs are on disk at most.
RELAYS_MAX = 8
#: A relay quotes no origin, so that what it answers itself may be quoted.
_OWN_RELAY = OriginRules(hosts=("127.0.0.1",), quotes=True)


class Relays:
    """Gives each target the URL to fetch it by on this host. Its methods may be called from several threads.

    What is published on this host is fetched there itself, over `loopback`; all else by a relay. `rules` are the
    fleet's, on what may be fetched. `route` says by an origin's URL what lies between it and this host. A relay keeps
    at most `budget_bytes` in `folder`, on this host's loopback, behind a token. What a process before this one left in
    `folder` when it was killed counts among the relays that nobody asks for any more, until its origin is asked for
    again.
    """

    def __init__(self, folder: Path, budget_bytes: int, route: Callable[[str], str], rules: OriginRules) -> None:
        self._folder, self._budget_bytes, self._route, self._rules = folder, budget_bytes, route, rules
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        #: By origin; the one that was asked for last is at the end.
        self._relays: OrderedDict[tuple[str, str | None, OriginRules], tuple[RelayServer, Path]] = OrderedDict()

    def via(self, target: Target) -> Target:
        """The same version, as it is fetched from here. Raises OSError or TransferError if no relay can be started."""
        target = replace(target, rules=replace(self._rules, client=target.rules.client))
        if is_here(target.url):
            return target
        origin = (target.url, target.token, target.rules)
        with self._lock:
            if origin not in self._relays:
                self._relays[origin] = self._start(target)
            self._relays.move_to_end(origin)
            relay, _ = self._relays[origin]
            # With the lock: nobody is to begin a relay in a folder that is being removed.
            _stop(self._relays.popitem(last=False)[1] for _ in range(len(self._relays) - RELAYS_MAX))
            self._sweep(RELAYS_MAX - len(self._relays))
        return replace(
            target, url=relay.url, token=self._token, source="relay", route=self._route(target.url), rules=_OWN_RELAY
        )

    def stop(self) -> None:
        """End all of them, and let go of what they keep."""
        with self._lock:
            _stop(self._relays.values())
            self._relays.clear()
            self._sweep(0)

    def _start(self, target: Target) -> tuple[RelayServer, Path]:
        # Two relays never share a folder: each has it locked.
        name = hashlib.sha256(f"{target.url} {target.token} {target.rules.client}".encode()).hexdigest()[:16]
        relay = RelayServer(
            target.url,
            self._folder / name,
            self._budget_bytes,
            token=self._token,
            origin_token=target.token,
            rules=target.rules,
        )
        return relay.start(), self._folder / name

    def _sweep(self, spared: int) -> None:
        """Remove the folders that no relay has, but for the `spared` that were written to last."""
        running = {folder for _, folder in self._relays.values()}
        left = [folder for folder in self._folder.glob("*") if folder not in running]
        for folder in sorted(left, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)[spared:]:
            # One that is locked is a relay's of another process.
            with suppress(OSError), (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def is_here(url: str) -> bool:
    """Whether an HTTP server of that URL is on this host: by its address, not by what names are."""
    # What is no URL is nowhere.
    with suppress(OSError, ValueError):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            return False
        named = {str(entry[4][0]) for entry in socket.getaddrinfo(parts.hostname, parts.port or 80)}
        own = {
            address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses
        }
        return any(address in own or ipaddress.ip_address(address).is_loopback for address in named)
    return False


def _stop(relays: Iterable[tuple[RelayServer, Path]]) -> None:
    for relay, folder in relays:
        relay.stop()
        shutil.rmtree(folder, ignore_errors=True)
