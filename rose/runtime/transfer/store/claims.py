"""What a store may not remove yet: packages that a receiver fetches now (pins), and where each receiver is (acks).

Each is a file, so that they outlive a restart and hold in every process. Call these with the store's lock held.

    pins/ID.json        {"packages": [STEM, ...], "until_unix_s"}
    acks/DIGEST.json    {"receiver", "version", "at_unix_s"}
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rose.ledger.layout import make_folder, write_file
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Package, plan

_PIN = re.compile(r"[0-9a-f]{32}")
#: Receivers that fetch at once.
PINS_MAX = 4096
#: Receivers whose place is known; those that were heard of longest ago are forgotten first.
RECEIVERS_MAX = 4096
#: What each folder's files hold.
_FIELDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "pins": {
        "packages": lambda way: type(way) is list and way != [] and all(type(stem) is str for stem in way),
        "until_unix_s": lambda at: type(at) in (int, float),
    },
    "acks": {
        "receiver": lambda name: type(name) is str,
        "version": lambda version: type(version) is int,
        "at_unix_s": lambda at: type(at) in (int, float),
    },
}


class Claims:
    """The folders `pins` and `acks` of a store. `now` gives seconds since the Unix epoch."""

    def __init__(self, store: Path, now: Callable[[], float]) -> None:
        self._pins = store / "pins"
        self._acks = store / "acks"
        self._now = now
        make_folder(self._pins)
        make_folder(self._acks)

    def pin(self, packages: Iterable[Package], ttl_s: float) -> str:
        """Keep packages for `ttl_s`; returns the pin's name. Raises TransferError while there are PINS_MAX."""
        if len(_names(self._pins)) >= PINS_MAX and len(self.pinned()) >= PINS_MAX:
            raise TransferError(f"{PINS_MAX} pins are held, which is the most there can be; try again later")
        pin = secrets.token_hex(16)
        self._put(pin, [package.stem for package in packages], ttl_s)
        return pin

    def renew(self, pin: str, ttl_s: float) -> None:
        """Keep a pin's packages for `ttl_s` from now. Raises TransferError if there is no such pin, or no longer."""
        held = _read(self._pins / f"{pin}.json") if _PIN.fullmatch(pin) else None
        if held is None or held["until_unix_s"] <= self._now():
            raise TransferError(f"there is no pin {pin!r}, or it has expired; plan and pin the way again")
        self._put(pin, held["packages"], ttl_s)

    def unpin(self, pin: str) -> None:
        """Let go of a pin; one that there is not is none the worse."""
        if _PIN.fullmatch(pin):
            (self._pins / f"{pin}.json").unlink(missing_ok=True)

    def pinned(self) -> list[list[str]]:
        """The stems of the packages that each live pin names; expired pins are removed."""
        ways: list[list[str]] = []
        for path, held in _all(self._pins):
            if held["until_unix_s"] <= self._now():
                path.unlink(missing_ok=True)
            else:
                ways.append(held["packages"])
        return ways

    def acknowledge(self, receiver: str, version: int) -> None:
        """Note that a receiver holds a version. Its name is any text; no path is made of it."""
        name = hashlib.sha256(receiver.encode(errors="surrogatepass")).hexdigest()
        body = {"receiver": receiver, "version": version, "at_unix_s": self._now()}
        path = self._acks / f"{name}.json"
        if len(names := _names(self._acks)) >= RECEIVERS_MAX and path.name not in names:
            oldest = sorted((self._acks / name for name in names), key=lambda path: path.stat().st_mtime_ns)
            for late in oldest[: len(names) - RECEIVERS_MAX + 1]:
                late.unlink()
        write_file(path, json.dumps(body).encode())

    def acknowledged(self, ttl_s: float) -> dict[str, int]:
        """The version of each receiver that was heard of in the last `ttl_s`; the others are forgotten."""
        versions: dict[str, int] = {}
        for path, ack in _all(self._acks):
            if ack["at_unix_s"] <= self._now() - ttl_s:
                path.unlink(missing_ok=True)
            else:
                versions[ack["receiver"]] = ack["version"]
        return versions

    def _put(self, pin: str, stems: list[str], ttl_s: float) -> None:
        body = {"packages": stems, "until_unix_s": self._now() + ttl_s}
        write_file(self._pins / f"{pin}.json", json.dumps(body).encode())


def _names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".json")]  # noqa: PTH208 - quicker, and asked often


def _all(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted(folder.glob("*.json")):
        if (body := _read(path)) is not None:
            yield path, body


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise TransferError(f"{path} is damaged ({error}); remove it")
    fields = _FIELDS[path.parent.name]
    if type(body) is not dict or body.keys() != fields.keys():
        raise TransferError(f"{path} is damaged: it holds {body!r}, expected {', '.join(fields)}; remove it")
    for field, holds in fields.items():
        if not holds(body[field]):
            raise TransferError(f"{path} is damaged: its {field!r} is {body[field]!r}; remove it")
    return body


def unneeded(
    packages: Sequence[Package],
    *,
    anchors_kept: int,
    pinned: Collection[Sequence[str]],
    acknowledged: Iterable[int],
) -> list[Package]:
    """The packages that may go, of those there are. What is kept:

    - The newest `anchors_kept` anchors, and all that leads on from the oldest of those.
    - The ways that are `pinned`, as stems in their order.
    - The cheapest way to the newest version from each `acknowledged` one, and from where each pinned way ends.
    """
    anchors = sorted(package.version for package in packages if package.base_version is None)
    oldest = min(anchors[-anchors_kept:], default=0)
    old = [p for p in packages if (p.version if p.base_version is None else p.base_version) < oldest]
    if not old:
        return []
    stems = {stem for way in pinned for stem in way}
    keep = {package for package in old if package.stem in stems}
    newest = max(package.version for package in packages)
    ends = {package.version for package in packages for way in pinned if package.stem == way[-1]}
    for version in {*acknowledged, *ends}:
        try:
            keep.update(plan(packages, newest, version))
        except TransferError:  # There already, or cut off before: it begins again at an anchor, which is kept.
            continue
    return [package for package in old if package not in keep]
