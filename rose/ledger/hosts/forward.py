"""The forwarder sends a ledger's segments to a controller, byte for byte and in order."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose.ledger.files import layout, segments, spool
from rose.ledger.files.layout import LedgerError
from rose.ledger.hosts.remote import ControllerAwayError, ControllerError, RemoteLedger
from rose.ledger.ledger import Ledger

_PAUSES_MAX = 8
_STOP_S = 10.0


@dataclass(slots=True)
class Progress:
    #: How many segments the controller still lacks, and the age of the oldest of them on disk. Before the controller
    #: answers for the first time, this may include an epoch of each writer that the controller already has.
    waiting: int = 0
    lag_s: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)
    stopped: str | None = None


class Forwarder:
    """Sends a ledger to the controller at the URL `to`. `once` makes one pass; `start` and `stop` run a thread."""

    def __init__(
        self, ledger: Ledger, to: str, token: str | None, report: Callable[[Progress], object], *, every_s: float = 2.0
    ) -> None:
        """Make the ledger a spool. `report` gets the progress of every pass. Raises LedgerError for a wrong URL."""
        self.folder = ledger.folder
        self._remote = RemoteLedger(to, token=token)
        layout.make_folder(self.folder / spool.FOLDER)
        self._every_s, self._report = every_s, report
        self._ends: dict[str, Any] = {}
        self._stopping = threading.Event()
        self._until_s = math.inf
        self._thread = threading.Thread(target=self._run, name="forwarder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send segments for at most ten seconds, then end."""
        if not self._stopping.is_set():
            self._until_s = time.monotonic() + _STOP_S
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        while True:
            last = self._stopping.is_set()
            progress = self.once()
            failures = failures + 1 if progress.stopped else 0
            self._report(progress)
            if last or time.monotonic() >= self._until_s:
                return
            self._stopping.wait(self._every_s * min(2**failures, _PAUSES_MAX))

    def once(self) -> Progress:
        progress = Progress()
        try:
            self._ends = self._remote.ends(self._writers())
            for writer in self._writers():
                try:
                    self._ship(writer, progress)
                except ControllerAwayError:
                    raise
                except (LedgerError, OSError) as error:
                    progress.problems[writer] = str(error)
        except (LedgerError, OSError) as error:
            progress.stopped = str(error)
        self._count_waiting(progress)
        return progress

    def _writers(self) -> list[str]:
        return [name for name in layout.writers(self.folder) if not spool.is_local(name)]

    def _ship(self, writer: str, progress: Progress) -> None:
        end = self._ends.get(writer)
        if end is not None:
            self._check_common(writer, end)
            if spool.first_unsent_epoch(self.folder, writer) != end["epoch"]:
                spool.acknowledged(self.folder, writer, end["epoch"])
        place = (-1, 0) if end is None else (end["epoch"], end["index"])
        for path in self._after(writer, place):
            if time.monotonic() >= self._until_s:
                progress.stopped = "it stopped before all was sent: the next forwarder sends the rest"
                return
            content = path.read_bytes()
            header = segments.read_header(content)
            if header.epoch > place[0] + 1:
                raise LedgerError(
                    f"epoch {place[0] + 1} of writer {writer!r} was merged before it was forwarded. Without it, the "
                    "controller takes no later epoch. Start the forwarder before the first compaction"
                )
            place = (header.epoch, header.index)
            if header.index == 0:
                layout.sync_folder(path.parent)  # A power cut must not take back a segment that the controller has.
            self._ends[writer] = self._remote.send_segment(str(path.relative_to(self.folder)), content)
            if header.index == 0:
                spool.acknowledged(self.folder, writer, header.epoch)

    def _after(self, writer: str, place: tuple[int, int]) -> Iterator[Path]:
        for epoch in layout.epochs(self.folder, writer):
            if epoch >= place[0]:
                folder = self.folder / "live" / writer / f"{epoch:06d}"
                yield from (folder / name for name in segments.segment_names(folder) if (epoch, int(name[:6])) > place)

    def _check_common(self, writer: str, end: dict[str, Any]) -> None:
        folder = self.folder / "live" / writer / f"{end['epoch']:06d}"
        own_segment = folder / f"{end['index']:06d}-{end['sha256']}.parquet"
        newest = max(layout.epochs(self.folder, writer), default=-1)
        if not own_segment.exists() and (folder.exists() or end["epoch"] > newest):
            raise ControllerError(
                f"the controller has another history of writer {writer!r}: its name is used on two hosts, or this "
                "ledger was made anew. Give this host's processes other writer names"
            )

    def _count_waiting(self, progress: Progress) -> None:
        with suppress(LedgerError, OSError):
            for writer in self._writers():
                with suppress(LedgerError, OSError):
                    end = self._ends.get(writer)
                    unsent = spool.first_unsent_epoch(self.folder, writer) or 0
                    waiting = list(self._after(writer, (end["epoch"], end["index"]) if end else (unsent, -1)))
                    progress.waiting += len(waiting)
                    if waiting:
                        progress.lag_s = max(progress.lag_s, time.time() - waiting[0].stat().st_mtime)
