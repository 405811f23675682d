"""A host's relays. A relay fetches another host's publication once, for all engines of this host."""

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

from rose.runtime.agent.weights.sync import Target
from rose.transfer.wire.origin_rules import OriginRules
from rose.transfer.wire.relay import RelayServer

RELAYS_MAX = 8  #: How many relays and folders are kept. Runs come and go, each on another port.
_OWN_RELAY = OriginRules(hosts=("127.0.0.1",), quotes=True)  #: A relay quotes no origin, so its answers may be quoted.


class Relays:
    """Gives each target (a policy version to fetch) a URL on this host. If another host serves the target, a relay is
    started here. The relay keeps at most `budget_bytes` of packages. Thread-safe."""

    def __init__(self, folder: Path, budget_bytes: int, route: Callable[[str], str], rules: OriginRules) -> None:
        self._folder, self._budget_bytes, self._route, self._rules = folder, budget_bytes, route, rules
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        #: By origin; the last used is at the end.
        self._relays: OrderedDict[tuple[str, str | None, str | None, OriginRules], tuple[RelayServer, Path]] = (
            OrderedDict()
        )

    def via(self, target: Target) -> Target:
        target = replace(target, rules=replace(self._rules, client=target.rules.client))
        if is_here(target.url):
            return target
        origin = (target.url, target.token, target.signer, target.rules)
        with self._lock:
            if origin not in self._relays:
                self._relays[origin] = self._start(target)
            self._relays.move_to_end(origin)
            relay, _ = self._relays[origin]
            # Under the lock: no relay may begin in a folder that is being removed.
            _stop(self._relays.popitem(last=False)[1] for _ in range(len(self._relays) - RELAYS_MAX))
            self._sweep(RELAYS_MAX - len(self._relays))
        return replace(
            target, url=relay.url, token=self._token, source="relay", route=self._route(target.url), rules=_OWN_RELAY
        )

    def stop(self) -> None:
        with self._lock:
            _stop(self._relays.values())
            self._relays.clear()
            self._sweep(0)

    def _start(self, target: Target) -> tuple[RelayServer, Path]:
        # Each relay locks its folder: no two share one.
        name = hashlib.sha256(
            f"{target.url} {target.token} {target.signer} {target.rules.client}".encode()
        ).hexdigest()[:16]
        relay = RelayServer(
            target.url,
            self._folder / name,
            self._budget_bytes,
            token=self._token,
            origin_token=target.token,
            rules=target.rules,
            signer=target.signer,
        )
        return relay.start(), self._folder / name

    def _sweep(self, spared: int) -> None:
        running = {folder for _, folder in self._relays.values()}
        left = [folder for folder in self._folder.glob("*") if folder not in running]
        for folder in sorted(left, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)[spared:]:
            with suppress(OSError), (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


def is_here(url: str) -> bool:
    """Return whether an HTTP URL leads to this host."""
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
