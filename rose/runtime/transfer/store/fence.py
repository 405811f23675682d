"""Who may publish into a store's folder: one run, and of its publishers the newest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rose.ledger.layout import write_file
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.package.manifest import Package

_FILE = "publisher.json"


class FencedError(TransferError):
    """A newer publisher has taken the folder over: what this one goes on with is nobody's any more."""


class Fence:
    """One publisher's claim to a folder. The newest number that published is in `publisher.json`; a lower one is
    refused.

    `number` is what whoever gives runs out gave this publisher: it rises each time that a run is resumed. None: the
    next one, from when it first publishes. Call these with the store's lock held.
    """

    def __init__(self, folder: Path, run_id: str, number: int | None) -> None:
        self._path = folder / _FILE
        self._run_id = run_id
        self._number = number

    @property
    def given(self) -> bool:
        """Whether it has a number."""
        return self._number is not None

    def hold(self, packages: Iterable[Package]) -> None:
        """Be the folder's publisher. Raises FencedError if a newer one is, TransferError if the folder, which has
        `packages`, is another run's, OSError if it cannot be written."""
        self.check_run(packages)
        newest = self._newest()
        if self._number is None:
            self._number = newest + 1
        if newest > self._number:
            raise FencedError(
                f"{self._path.parent} was taken over by a newer publisher (fence {newest}, this one has "
                f"{self._number}): end this one, or resume the run"
            )
        if newest < self._number:
            write_file(self._path, json.dumps({"run_id": self._run_id, "fence": self._number}).encode())

    def check_run(self, packages: Iterable[Package]) -> None:
        """Raise TransferError if any of the packages is of another run."""
        for other in {package.run_id for package in packages} - {self._run_id}:
            raise TransferError(
                f"{self._path.parent} holds versions {_name(other)}, and this publisher is {_name(self._run_id)}: give "
                "each run a folder of its own"
            )

    def _newest(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["fence"])
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError, LookupError) as error:
            raise TransferError(f"{self._path} cannot be read ({error}): remove it if nobody publishes here") from None


def _name(run_id: str) -> str:
    return f"of run {run_id!r}" if run_id else "of no run"
