"""Claims on a store. A pin keeps packages during a fetch (pins/ID.json). An ack says which version a receiver has."""

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from rose.ledger.files.layout import make_folder, write_file
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Name, Number, Package, plan

_PIN = re.compile(r"[0-9a-f]{32}")
PINS_MAX = 4096  # Receivers that fetch at once.
RECEIVERS_MAX = 4096  # Remembered receivers; the receiver silent for longest is forgotten first.

_UnixTime = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Pin(msgspec.Struct, forbid_unknown_fields=True):
    packages: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=1 << 20)]
    until_unix_s: _UnixTime


class _Ack(msgspec.Struct, forbid_unknown_fields=True):
    receiver: Name
    version: Number
    at_unix_s: _UnixTime


_Claim = TypeVar("_Claim", _Pin, _Ack)


class Claims:
    """The folders `pins` and `acks` of a store. Hold the store's lock to call `pinned` or `acknowledged`."""

    def __init__(
        self, store: Path, now: Callable[[], float], locked: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._pins = store / "pins"
        self._acks = store / "acks"
        self._now, self._locked = now, locked
        make_folder(self._pins)
        make_folder(self._acks)

    def pin(self, packages: Iterable[Package], ttl_s: float) -> str:
        """Protect packages from removal for `ttl_s` seconds. Return the pin's id. Then check that all packages exist:
        one may have been removed just before the pin. Raises TransferError."""
        with self._locked():
            if len(_names(self._pins)) >= PINS_MAX and len(self.pinned()) >= PINS_MAX:
                raise TransferError(f"the store has {PINS_MAX} pins, the maximum; try again later")
            pin = secrets.token_hex(16)
            self._put(pin, [package.stem for package in packages], ttl_s)
        return pin

    def renew(self, pin: str, ttl_s: float) -> None:
        with self._locked():
            kept = _read(self._pins / f"{pin}.json", _Pin) if _PIN.fullmatch(pin) else None
            if kept is None or kept.until_unix_s <= self._now():
                raise TransferError(f"pin {pin!r} is unknown or has expired; ask for a new pin")
            self._put(pin, kept.packages, ttl_s)

    def unpin(self, pin: str) -> None:
        if _PIN.fullmatch(pin):
            with self._locked():
                (self._pins / f"{pin}.json").unlink(missing_ok=True)

    def pinned(self) -> list[list[str]]:
        ways: list[list[str]] = []
        for path, pin in _all(self._pins, _Pin):
            if pin.until_unix_s <= self._now():
                path.unlink(missing_ok=True)
            else:
                ways.append(pin.packages)
        return ways

    def acknowledge(self, receiver: str, version: int) -> None:
        name = f"{hashlib.sha256(receiver.encode()).hexdigest()}.json"
        with self._locked():
            names = _names(self._acks)
            if len(names) >= RECEIVERS_MAX and name not in names:
                oldest = sorted((self._acks / other for other in names), key=lambda path: path.stat().st_mtime_ns)
                for path in oldest[: len(names) - RECEIVERS_MAX + 1]:
                    path.unlink()
            write_file(self._acks / name, msgspec.json.encode(_Ack(receiver, version, self._now())))

    def acknowledged(self, ttl_s: float) -> dict[str, int]:
        versions: dict[str, int] = {}
        for path, ack in _all(self._acks, _Ack):
            if ack.at_unix_s <= self._now() - ttl_s:
                path.unlink(missing_ok=True)
            else:
                versions[ack.receiver] = ack.version
        return versions

    def _put(self, pin: str, stems: list[str], ttl_s: float) -> None:
        write_file(self._pins / f"{pin}.json", msgspec.json.encode(_Pin(stems, self._now() + ttl_s)))


def _names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".json")]  # noqa: PTH208 - faster, and called often


def _all(folder: Path, kind: type[_Claim]) -> Iterator[tuple[Path, _Claim]]:
    for path in sorted(folder.glob("*.json")):
        if (claim := _read(path, kind)) is not None:
            yield path, claim


def _read(path: Path, kind: type[_Claim]) -> _Claim | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise TransferError(f"{path} is damaged ({error}); remove it")


def unneeded(
    packages: Sequence[Package], *, anchors_kept: int, pinned: Collection[Sequence[str]], acknowledged: Iterable[int]
) -> list[Package]:
    """Return the packages that can be removed. This keeps the newest `anchors_kept` anchors, all later packages, the
    chains in `pinned`, and a chain from each pinned or acknowledged version to the newest version."""
    anchors = sorted(package.version for package in packages if package.base_version is None)
    oldest = min(anchors[-anchors_kept:], default=0)
    if not (old := [p for p in packages if (p.version if p.base_version is None else p.base_version) < oldest]):
        return []
    stems = {stem for way in pinned for stem in way}
    keep = {package for package in old if package.stem in stems}
    newest = max(package.version for package in packages)
    ends = {package.version for package in packages for way in pinned if package.stem == way[-1]}
    for version in {*acknowledged, *ends}:
        try:
            keep.update(plan(packages, newest, version))
        except TransferError:  # The version is the newest, or its receiver starts from a kept anchor.
            continue
    return [package for package in old if package not in keep]
