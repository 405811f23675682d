"""The archive: copies of old compacted files outside the ledger. Manifests stay in the ledger, so chains stay whole."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rose.clock import utc_us
from rose.events import LedgerAction
from rose.ledger.checks import expected
from rose.ledger.files import catalog, examine, layout, rolled, spool
from rose.ledger.files.layout import LedgerError, Part
from rose.ledger.growth import compaction
from rose.ledger.growth.rollup import KEPT_WRITERS
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter


class Store:
    """The files under one URL. Every method raises LedgerError, which names the file."""

    def __init__(self, url: str) -> None:
        import fsspec  # This import takes 0.1 s, and pricing imports this file.
        from fsspec.implementations.local import LocalFileSystem

        if "::" in url:
            raise LedgerError(f"{url} goes through a cache or an archive file; name the place itself")
        if urlsplit(url).password:
            raise LedgerError("the URL has a password, which the ledger would record; use fsspec's configuration")
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise LedgerError(f"cannot open {url}: {error}") from error
        self._path: str = path.rstrip("/")
        self._local = isinstance(self._fs, LocalFileSystem)

    def url(self, name: str = "") -> str:
        return str(self._fs.unstrip_protocol(f"{self._path}/{name}".rstrip("/")))

    def local_folder(self) -> Path | None:
        return Path(self._path).resolve() if self._local else None

    def read(self, name: str) -> bytes | None:
        with self._refusals("read", name):
            try:
                return bytes(self._fs.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write the file `name` as a whole. In a local folder, the file is on disk when this returns."""
        path = f"{self._path}/{name}"
        with self._refusals("write to", name):
            if self._local:
                layout.make_folder(Path(path).parent)
                layout.write_file(Path(path), content)
            else:
                self._fs.pipe_file(path, content)

    def remove(self, name: str) -> None:
        with self._refusals("remove", name):
            self._fs.rm_file(f"{self._path}/{name}")

    def names(self, folder: str) -> list[str]:
        with self._refusals("list", folder):
            self._fs.invalidate_cache()
            try:
                listed = self._fs.ls(f"{self._path}/{folder}", detail=False)
            except FileNotFoundError:
                listed = []
            return sorted(name.rpartition("/")[2] for name in listed)

    @contextmanager
    def _refusals(self, act: str, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise LedgerError(f"cannot {act} {self.url(name)}: {error}") from error


@dataclass(slots=True)
class Archived:
    url: str
    deleted: bool
    parts: int = 0
    left: int = 0
    events: int = 0
    bytes: int = 0  # Bytes of the Parquet files, copied now or earlier.
    skipped: dict[str, int] = field(default_factory=dict)  # Old parts that stay, by reason.


@dataclass(frozen=True, slots=True)
class Restored:
    parts: int
    events: int
    bytes: int
    url: str
    missing: list[str]


def archive(ledger: Ledger, *, older_than_days: float, to: str, delete: bool, grace_s: float = 60.0) -> Archived:
    """Copy compacted parts older than `older_than_days` to the URL `to`, and check the copies. Raises LedgerError.

    With `delete`, the parts that are in a roll-up then leave the ledger. Files are removed after `grace_s` seconds."""
    store = outside(Store(to), ledger.folder)
    before_us = utc_us() - int(older_than_days * 86_400e6)
    done = Archived(url=store.url(), deleted=delete)
    with layout.refusals(f"cannot archive {ledger.folder}"):
        with LedgerWriter.open(ledger.folder, expected.ARCHIVE_WRITER, layout.UPKEEP_RUN_ID) as log:
            with ledger.lock(layout.PARTS_LOCK):
                merged = [part for parts in ledger.parts.values() for part in parts if part.state == "compacted"]
                newest_us = {part: layout.read_manifest(ledger.folder, part)[0]["at_us_max"] for part in merged}
                due = [part for part in merged if newest_us[part] is not None and newest_us[part] < before_us]
            archiving = _Archiving(ledger, store, delete, log)
            for part in due:
                try:
                    archiving.archive(part, done)
                except FileNotFoundError:
                    if part in layout.parts(ledger.folder, part.writer):
                        raise
        if delete:
            catalog.refresh(ledger.folder)
            with ledger.lock(layout.PARTS_LOCK):
                for writer in layout.writers(ledger.folder):
                    compaction.remove_archived(ledger, writer, grace_s)
    return done


def restore(ledger: Ledger, from_url: str, *, since_us: int | None = None, until_us: int | None = None) -> Restored:
    store = Store(from_url)
    parts = events = size = 0
    missing = []
    with (
        layout.refusals(f"cannot restore to {ledger.folder}"),
        LedgerWriter.open(ledger.folder, expected.ARCHIVE_WRITER, layout.UPKEEP_RUN_ID) as log,
    ):
        own = _own_files(ledger)
        for part in layout.archived_parts(ledger.folder):
            manifest, manifest_content = layout.read_manifest(ledger.folder, part)
            if until_us is not None and manifest["at_us_min"] >= until_us:
                continue
            if since_us is not None and manifest["at_us_max"] < since_us:
                continue
            name = f"{part.stem}.parquet"
            if (content := store.read(name)) is None:
                missing.append(store.url(name))
                continue
            if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
                raise LedgerError(f"{store.url(name)} is not the archived file: its SHA-256 differs")
            detail = _detail(part, manifest, manifest_content, store.url(name))
            if detail["manifest_sha256"] not in own:
                raise LedgerError(f"{part.manifest} was changed. Run `rose ledger verify`")
            with ledger.lock(layout.PARTS_LOCK):
                layout.make_folder((ledger.folder / name).parent)
                layout.write_file(ledger.folder / name, content)
                _record(log, expected.RESTORED_ACTION, detail)
                compacted = replace(part, state="compacted")
                layout.move_file(ledger.folder / part.manifest, ledger.folder / compacted.manifest)
            parts, events, size = parts + 1, events + detail["events"], size + len(content)
        if parts:
            catalog.refresh(ledger.folder)
    return Restored(parts, events, size, store.url(), missing)


def outside(store: Store, root: Path) -> Store:
    if store.url().startswith("memory:"):
        raise LedgerError(f"{store.url()} does not outlive this process; archive to a folder or to object storage")
    folder = store.local_folder()
    if folder is not None:
        if folder == root or root in folder.parents:
            raise LedgerError(f"{folder} lies in the ledger {root}; archive to another folder")
        with layout.refusals(f"cannot archive to {folder}"):
            layout.make_folder(folder)
    return store


def _own_files(ledger: Ledger) -> set[str]:
    recorded = examine.recorded(ledger.folder, expected.COMPACTION_WRITER, expected.COMPACTED_ACTION)
    return {detail[name] for detail in recorded for name in ("sha256", "manifest_sha256")}


def _detail(part: Part, manifest: dict[str, Any], manifest_content: bytes, url: str) -> dict[str, Any]:
    return {
        "file": f"{part.stem}.parquet",
        "url": url,
        "sha256": manifest["sha256"],
        "first_seq": manifest["first_seq"],
        "last_seq": manifest["last_seq"],
        "events": manifest["last_seq"] - manifest["first_seq"] + 1,
        "manifest_sha256": hashlib.sha256(manifest_content).hexdigest(),
        "deleted": False,
    }


def _record(log: LedgerWriter, action: str, detail: dict[str, Any]) -> None:
    log.record(LedgerAction(action=action, detail_json=json.dumps(detail)), durable=True)


class _Archiving:
    def __init__(self, ledger: Ledger, store: Store, delete: bool, log: LedgerWriter) -> None:
        self._ledger, self._store, self._delete, self._log = ledger, store, delete, log
        coverage = rolled.newest(ledger.folder) if delete else None
        #: By writer: the last rolled-up epoch, and the seq after it.
        self._rolled_up = {} if coverage is None else coverage.writers
        recorded = examine.recorded(ledger.folder, expected.ARCHIVE_WRITER, expected.ARCHIVED_ACTION)
        self._copied = {(detail["manifest_sha256"], detail.get("url")) for detail in recorded}
        self._own = _own_files(ledger)

    def archive(self, part: Part, done: Archived) -> None:
        content, manifest, manifest_content = compaction.read_compacted(self._ledger, part)
        detail = _detail(part, manifest, manifest_content, self._store.url(f"{part.stem}.parquet"))
        if detail["manifest_sha256"] not in self._own:
            raise LedgerError(f"{part.manifest}: no compaction event names it. Run `rose ledger verify`")
        self._copy(part, content, manifest_content)
        reason = self._reason_to_keep(part, detail["last_seq"]) if self._delete else None
        if reason is not None:
            done.skipped[reason] = done.skipped.get(reason, 0) + 1
        if self._delete and reason is None:
            self._move_out(part, detail)
            done.left += 1
        elif (detail["manifest_sha256"], detail["url"]) not in self._copied:
            _record(self._log, expected.ARCHIVED_ACTION, detail)
        done.parts += 1
        done.events += detail["events"]
        done.bytes += len(content)

    def _reason_to_keep(self, part: Part, last_seq: int) -> str | None:
        if part.writer in KEPT_WRITERS:
            return "its events prove what was merged, archived and closed"
        unsent = spool.first_unsent_epoch(self._ledger.folder, part.writer)
        if unsent is not None and part.last >= unsent:
            return "its events are not all at the gateway; the agent of this host sends them"
        if last_seq >= self._rolled_up.get(part.writer, (-1, 0))[1]:
            return "its events are not in the roll-up; run `rose jobs run roll-up` first"
        return None

    def _copy(self, part: Part, content: bytes, manifest_content: bytes) -> None:
        store = self._store
        stored = store.read(f"{part.stem}.json")
        if stored not in (None, manifest_content) and examine.manifest(stored or b"").said:
            raise LedgerError(f"{store.url(part.stem)}.json is of another ledger; give each ledger a place of its own")
        for name, wanted in ((f"{part.stem}.parquet", content), (f"{part.stem}.json", manifest_content)):
            if store.read(name) != wanted:
                store.write(name, wanted)
                if store.read(name) != wanted:
                    raise LedgerError(f"{store.url(name)} does not match the written file; nothing was removed")
        folder = store.local_folder()
        if folder is not None and (folder / f"{part.stem}.json").samefile(self._ledger.folder / part.manifest):
            raise LedgerError(f"{folder} is the ledger's own folder under another name; archive to another folder")
        # A reader would count narrower parts twice, which were copied before compaction merged them.
        home, span = f"compacted/{part.writer}", (part.first, part.last)
        for name in store.names(home):
            first, last = layout.manifest_span(name.replace(".parquet", ".json")) or span
            narrower = (first, last) != span and part.first <= first and last <= part.last
            if narrower and hashlib.sha256(store.read(f"{home}/{name}") or b"").hexdigest() in self._own:
                store.remove(f"{home}/{name}")

    def _move_out(self, part: Part, detail: dict[str, Any]) -> None:
        with self._ledger.lock(layout.PARTS_LOCK):
            if part not in layout.parts(self._ledger.folder, part.writer):
                raise FileNotFoundError(part.pattern)
            _record(self._log, expected.ARCHIVED_ACTION, {**detail, "deleted": True})
            manifest = self._ledger.folder / part.manifest
            os.utime(manifest)  # The file's grace period counts from the manifest's time.
            layout.move_file(manifest, self._ledger.folder / replace(part, state="archived").manifest)
