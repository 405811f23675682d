"""Lets only one run publish into the folder of a store, and only the newest publisher of this run."""

import json
from collections.abc import Iterable
from pathlib import Path

from rose.ledger.files.layout import write_file
from rose.transfer.errors import TransferError, of_run
from rose.transfer.package.manifest import Package


class FencedError(TransferError):
    """A newer publisher has taken over the folder."""


class Fence:
    """A publisher's claim to a folder. `hold` fails if `publisher.json` has a number higher than `number`. Whoever
    calls `hold` must have the store's lock."""

    def __init__(self, folder: Path, run_id: str, number: int | None) -> None:
        self._path = folder / "publisher.json"
        self._run_id, self._number = run_id, number

    @property
    def given(self) -> bool:
        return self._number is not None

    def hold(self, packages: Iterable[Package]) -> None:
        """Take over the folder. Raises TransferError (FencedError if a newer publisher has the folder) or OSError."""
        self.check_run(packages)
        newest = self._newest()
        if self._number is None:
            self._number = newest + 1
        if newest > self._number:
            raise FencedError(
                f"{self._path.parent} has publisher {newest}, newer than {self._number}: end this one or resume the run"
            )
        if newest < self._number:
            write_file(self._path, json.dumps({"run_id": self._run_id, "fence": self._number}).encode())

    def check_run(self, packages: Iterable[Package]) -> None:
        for other in {package.run_id for package in packages} - {self._run_id}:
            raise TransferError(
                f"{self._path.parent} has versions {of_run(other)}, but this publisher is {of_run(self._run_id)}: "
                "give each run a folder of its own"
            )

    def _newest(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["fence"])
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError, LookupError) as error:
            raise TransferError(f"{self._path} cannot be read ({error}): remove it if no publisher runs") from None
