"""Brings one engine to a policy version: fetch, verify, decode, swap. Then tells the origin and audits the weights."""

import http.client
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from rose.clock import monotonic_ns
from rose.events import Sync
from rose.runtime.coserving.questions import Verb, question, refusal
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.policy.drift import Standing
from rose.runtime.weight_version import weights_name
from rose.transfer.apply.staged import Staged
from rose.transfer.errors import TransferError
from rose.transfer.package.manifest import Manifest, Package
from rose.transfer.wire.origin import RefusedError, open_origin
from rose.transfer.wire.origin_rules import ANYWHERE, STRICT, OriginRules
from rose.transfer.wire.receiver import Receiver


@dataclass(frozen=True, slots=True)
class Target:
    """A policy version, and the origin to fetch it from. `run_id` is empty if the version belongs to no run. `signer`
    is the public key for the version's signature, or None if the version is not signed."""

    run_id: str
    version: int
    url: str
    token: str | None = field(default=None, repr=False)
    signer: str | None = None
    source: str = "trainer"
    route: str = "loopback"
    rules: OriginRules = STRICT

    @property
    def name(self) -> str:
        return f"version {self.version} of run {self.run_id!r}" if self.run_id else f"version {self.version}"


Via = Callable[[Target], Target]  # gives the target as a host fetches it


def from_anywhere(target: Target) -> Target:
    return replace(target, rules=ANYWHERE)


def longest(reports: list[dict[str, Any]], field: str) -> int:
    return max(int(report[field]) for report in reports)


class HeldRecord:
    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._next = staging / "next.json"

    def announce(self, manifest: Manifest) -> None:
        """Record that the engine may now hold `manifest`'s version or its former version. Raises TransferError."""
        partial = self._staging / "next.partial"
        try:
            partial.write_bytes(manifest.to_bytes())
            partial.replace(self._next)
        except OSError as error:
            raise TransferError(f"{self._staging} cannot be written ({error.strerror}): make room")

    def confirm(self, version: int) -> None:
        """Record that the engine holds the announced version. The ledger may lack its sync until `note_recorded`."""
        for stale in self._staging.glob("held-*.json"):
            stale.unlink()
        self._path(version).hardlink_to(self._next)

    def note_recorded(self) -> None:
        self._next.unlink(missing_ok=True)

    def is_recorded(self, version: int) -> bool:
        return not (self._next.exists() and self._next.samefile(self._path(version)))

    def manifest(self, version: int) -> Manifest:
        return Manifest.from_bytes(self._path(version).read_bytes())

    def candidates(self) -> Iterator[Manifest]:
        """Yield manifests of the versions that a taken-over engine may hold: first the confirmed version, then the
        announced version, once it is recorded as confirmed. Raises OSError or TransferError."""
        for path in sorted(self._staging.glob("held-*.json")):
            yield Manifest.from_bytes(path.read_bytes())
        if self._next.exists():
            announced = Manifest.from_bytes(self._next.read_bytes())
            self.confirm(announced.version)
            yield announced

    def _path(self, version: int) -> Path:
        return self._staging / f"held-{version}.json"


_PHASE_TIMEOUT_S = 60.0  # of one phase; plus a second per _PHASE_BYTES_PER_S of weights
_PHASE_BYTES_PER_S = 50e6
_WORK: dict[Verb, str] = {"prepare": "load", "commit": "switch to", "audit": "check", "confirm": "confirm"}
_POLL_S = 0.002
_AUDIT_POLL_S = 0.05
_GIVE_UP_S = 10.0  # the longest wait for an engine to confirm a question


class Phases:
    def __init__(self, engine: EngineProcess, staging: Path) -> None:
        self._engine, self._staging = engine, staging
        self._given_up = threading.Event()
        self._turn = threading.RLock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._turn:
            self._check()
            yield

    def give_up(self) -> None:
        """Let no more phases begin. Return when the phase in progress has ended, or after `_GIVE_UP_S` seconds."""
        self._given_up.set()
        if self._turn.acquire(timeout=_GIVE_UP_S):
            self._turn.release()

    def ask(
        self, verb: Verb, version: int, dense_bytes: int, *, gives_way: threading.Event | None = None
    ) -> list[dict[str, Any]]:
        """Run phase `verb` on all ranks, and return their reports. Raises TransferError, also if `gives_way` is set."""
        with self.turn():
            engine_id = self._engine.spec.engine_id
            for stale in self._staging.glob(f"{version}.{verb}.*.json"):
                stale.unlink()
            try:
                refused = refusal(self._engine.post("/generate", question(verb, version)))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise TransferError(f"{engine_id} did not answer when told to {_WORK[verb]} version {version}: {error}")
            if refused is not None:
                raise TransferError(f"{engine_id} refused to {_WORK[verb]} version {version}: {refused}")
            return self._reports(verb, version, dense_bytes, gives_way)

    def _reports(
        self, verb: Verb, version: int, dense_bytes: int, gives_way: threading.Event | None
    ) -> list[dict[str, Any]]:
        engine_id = self._engine.spec.engine_id
        timeout_s = _PHASE_TIMEOUT_S + dense_bytes / _PHASE_BYTES_PER_S
        deadline = time.monotonic() + timeout_s
        reports: list[dict[str, Any]] = []
        while not reports or len(reports) < reports[0]["ranks"]:
            path = self._staging / f"{version}.{verb}.{len(reports)}.json"
            while not path.exists():
                self._check()
                if gives_way is not None and gives_way.is_set():
                    raise TransferError("the audit gave way to a sync")
                if not self._engine.alive:
                    raise TransferError(f"{engine_id} died before it could {_WORK[verb]} version {version}")
                if time.monotonic() > deadline:
                    late = f"did not {_WORK[verb]} version {version} within {timeout_s:.0f} s"
                    raise TransferError(f"{engine_id}{f' (rank {len(reports)})' if reports else ''} {late}")
                time.sleep(_POLL_S if gives_way is None else _AUDIT_POLL_S)
            reports.append(json.loads(path.read_text()))
            path.unlink()
        failed = [
            report["reason"] if len(reports) == 1 else f"rank {rank}: {report['reason']}"
            for rank, report in enumerate(reports)
            if not report["ok"]
        ]
        if failed:
            raise TransferError("; ".join(failed))
        return reports

    def _check(self) -> None:
        if self._given_up.is_set():
            raise TransferError("its agent leaves the engine to another agent")


_REPORT = re.compile(rf"\d+\.({'|'.join(get_args(Verb))})\.\d+\.json")
_NOT_TRIED = (OSError, TransferError)  # errors before a target is tried, such as no room on this host


class EngineSync:
    """Brings an engine to policy versions, for an agent. Version 0 is the checkpoint. Only `give_up` is thread-safe."""

    def __init__(self, engine: EngineProcess, staging: Path, *, device_id: str, via: Via = from_anywhere) -> None:
        self._engine = engine
        self._staging = staging
        self._record = HeldRecord(staging)
        self.note_recorded = self._record.note_recorded  #: To call when the sync is in the ledger.
        self._device_id = device_id
        self._via = via
        self.held: tuple[str, int] = ("", 0)  #: (run, version). This is one value, because another thread reads it.
        self.standing = Standing(held=False, trusted=True, looked_ns=monotonic_ns())
        self._asked: Target | None = None  #: The last target, and the last target of the engine's run.
        self._held_from: Target | None = None
        self.origin_knows = False
        self.missing_sync: Sync | None = None  #: The sync that the former agent of a taken-over engine did not record.
        self._why_no_base: str | None = None  # Why the running sync fetches all weights.
        self._moved_bytes = 0
        self._phases = Phases(engine, staging)

    @property
    def run_id(self) -> str:
        return self.held[0]

    @property
    def version(self) -> int:
        return self.held[1]

    def bring(self, target: Target) -> Sync:
        """Bring the engine to the target's version, and return the sync's event. After a failure, the event has a
        reason. If a delta cannot be used, all weights (an anchor) are fetched instead."""
        self._asked = target
        return self._bring_to(target)

    def locate(self, target: Target) -> None:
        self._learn(target)
        self._note(failures=0)

    def bring_back(self) -> Sync | None:
        """Fetch all weights again if the engine's weights are not trusted, and return the sync's event. Return None if
        they are trusted, or if no origin is known."""
        last = self._held_from if self.standing.held else self._asked
        if self.standing.trusted or last is None:
            return None
        return self._bring_to(replace(last, version=self.version))

    def take_over(self, swaps: int) -> str | None:
        """Find out from hashes which weights a former agent's engine holds. Return why that failed, or None. `swaps` is
        how often the engine's weights were changed; after 0 swaps it still has its checkpoint."""
        if swaps == 0:
            return None  # It is at its checkpoint, as a newly started engine is.
        reason: str | None = "its weights are not on record"
        try:
            with self._phases.turn():
                for manifest in self._record.candidates():
                    if (reason := self._confirm(manifest)) is None:
                        found = replace(self._event_at_target(Target(*self.held, ""), monotonic_ns()), source="unknown")
                        self.missing_sync = None if self._record.is_recorded(manifest.version) else found
                        break
        except (OSError, TransferError) as error:
            return f"it is not possible to find out which weights it holds: {error}"
        return reason

    def audit(self, gives_way: threading.Event | None = None) -> Sync | None:
        """Compare the engine's weights with the version that it acknowledged, and this version with the origin's
        version. Return an event if a difference is found. Otherwise, or once `gives_way` is set, return None."""
        if not (self.standing.held and self.standing.trusted):
            return None
        # The origin is told again: without that, it removes what leads on from this version after a while.
        event = self._checked(lambda held: self._drift(held, gives_way))
        self._note(looked_ns=monotonic_ns())
        return event

    def acknowledge(self) -> Sync | None:
        """Tell the origin which weights the engine holds, unless it was told already. Return an event if the origin's
        version has other weights. If the origin does not answer, it is told before the next sync or by an audit."""
        if self.origin_knows or not (self.standing.held and self.standing.trusted):
            return None
        with suppress(OSError):
            return self._checked(lambda _: None)
        return None

    def _checked(self, drift_of: Callable[[Manifest], str | None]) -> Sync | None:
        began = monotonic_ns()
        held = self._record.manifest(self.version)
        way = drift = None
        with suppress(*_NOT_TRIED):
            way = None if self._held_from is None else self._via(replace(self._held_from, version=self.version))
        try:
            drift = drift_of(held)
            if drift is None and way is not None:
                self._tell(held, way)
        except RefusedError as error:
            drift = str(error)
        except TransferError:
            pass
        if drift is None:
            return None
        self._note(trusted=False)
        self._moved_bytes = 0
        at = way or Target(self.run_id, self.version, "")
        event = self._event(at, began, self.version, f"drift: {drift}")
        return replace(event, source="audit", encoding="dense", dense_bytes=held.dense_bytes)

    def give_up(self) -> None:
        """Leave the engine to another agent after the phase in progress. Staged and recorded versions remain."""
        self._phases.give_up()

    def _bring_to(self, target: Target) -> Sync:
        began = monotonic_ns()
        self._moved_bytes = 0
        try:
            event = self._bring_by(self._via(target), began)
        except _NOT_TRIED as error:
            event = self._missed(target, began, None, None, f"{type(error).__name__}: {error}")
        self._learn(target)
        return event

    def _bring_by(self, target: Target, began: int) -> Sync:
        reasons: list[str] = []
        self._why_no_base = None
        try:
            base = self._base(target)
        except RefusedError as error:
            base = None
            self._note(trusted=False)
            reasons.append(str(error))
        if base is not None and self.held == (target.run_id, target.version):
            return self._event_at_target(target, began)  # The engine started from a checkpoint that is this version.
        for have in dict.fromkeys((base, None)):
            try:
                return self._try(target, have, began)
            except TransferError as error:
                reasons.append(str(error))
        return self._missed(target, began, base, have, "; then with all weights in place of changes: ".join(reasons))

    def _event_at_target(self, target: Target, began: int) -> Sync:
        """Return the event of an engine that is at the target's version already."""
        sha256 = self._record.manifest(target.version).weights_sha256
        return replace(self._event(target, began, target.version, None), ok=True, sha256=sha256)

    def _missed(self, target: Target, began: int, base: int | None, have: int | None, reason: str) -> Sync:
        if not self.standing.trusted:
            # Without a base this was an attempt to bring the engine back.
            self._note(looked_ns=monotonic_ns(), failures=self.standing.failures + (have is None))
        return self._event(target, began, base, reason)

    def _learn(self, target: Target) -> None:
        if self.standing.held and self.run_id == target.run_id:
            self._held_from = target

    def _try(self, target: Target, base: int | None, began: int) -> Sync:
        """Fetch, prepare and commit `target`. Raises TransferError."""
        version = target.version
        receiver = self._receiver(target)
        with self._phases.turn():
            self._forget_all_but(receiver.folder(version, base))
        staged = receiver.fetch(version, base)
        manifest = staged.manifests[-1]
        self._moved_bytes += staged.wire_bytes
        with self._phases.turn():
            prepared, committed = self._swap_in(staged)
            self.held, self.origin_knows = (target.run_id, version), False
            self._record.confirm(version)
        # An attempt to bring the engine back has failed unless the origin confirms the weights.
        failures = self.standing.failures + (not self.standing.trusted)
        self._note(held=True, trusted=True, looked_ns=monotonic_ns(), failures=failures)
        return replace(
            self._event(target, began, staged.base_version, self._why_no_base),
            ok=True,
            dense_bytes=staged.dense_bytes,
            changed_elements=staged.changed_elements,
            total_elements=manifest.total_elements,
            encode_ns=staged.encode_ns,
            fetch_ns=staged.fetch_ns,
            verify_ns=staged.verify_ns + longest(prepared, "verify_ns"),
            stage_ns=longest(prepared, "stage_ns"),
            pause_ns=longest(committed, "pause_ns"),
            acknowledge_ns=longest(committed, "acknowledge_ns"),
            sha256=manifest.weights_sha256,
        )

    def _swap_in(self, staged: Staged) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        version = staged.version
        link = self._staging / f"v{version}"
        link.unlink(missing_ok=True)
        link.symlink_to(staged.folder.name)
        try:
            prepared = self._phases.ask("prepare", version, staged.dense_bytes)
            # Announced first: the engine has it before it reports so, and the next agent may have to know.
            self._record.announce(staged.manifests[-1])
            try:
                committed = self._phases.ask("commit", version, staged.dense_bytes)
                ends = {(report["after_step"], report["sha256"]) for report in committed}
                if len(ends) > 1:
                    raise TransferError(
                        f"ranks swapped to version {version}, but differ in the step or the weights: {sorted(ends)}"
                    )
            except TransferError:
                self._note(trusted=False)  # Some rank may have the version, or other weights.
                raise
        finally:
            link.unlink(missing_ok=True)
            staged.remove()
        return prepared, committed

    def _event(self, target: Target, began_ns: int, base: int | None, reason: str | None) -> Sync:
        over_http = target.url.startswith(("http://", "https://"))
        return Sync(
            device_id=self._device_id,
            engine_id=self._engine.spec.engine_id,
            policy_version=target.version,
            ok=False,
            base_version=base,
            encoding="dense" if base is None else "delta",
            wire_bytes=self._moved_bytes,
            dense_bytes=0,
            total_ns=monotonic_ns() - began_ns,
            source=target.source if over_http else "object store",
            route=target.route,
            reason=reason,
            rl_run_id=target.run_id or None,
        )

    def _base(self, target: Target) -> int | None:
        """Return the engine's version if a delta from this version to `target` can be used, or None if all weights must
        be fetched. Raises RefusedError if the origin's weights of this version differ from the engine's."""
        if not self.standing.trusted or (self.standing.held and self.run_id != target.run_id):
            return None
        if not self.origin_knows:
            try:
                self._acknowledge_late(target)
            except RefusedError:
                raise
            except TransferError as error:
                if self.standing.held:
                    self._why_no_base = (
                        f"all weights were fetched: the origin was not told of version {self.version}: {error}"
                    )
                return None
        return self.version

    def _acknowledge_late(self, target: Target) -> None:
        if not self.standing.held:
            published = self._published(self.version, target)
            if published is None:
                raise TransferError(f"the engine started from version {self.version}, but the origin does not have it")
            with self._phases.turn():
                self._record.announce(published)
                self._record.confirm(self.version)
            if (drift := self._drift(published)) is not None:
                raise TransferError(drift)
            self.held = (target.run_id, self.version)
            self._note(held=True, looked_ns=monotonic_ns())
        self._tell(self._record.manifest(self.version), target)

    def _receiver(self, target: Target) -> Receiver:
        return Receiver(
            target.url,
            target.token,
            self._staging,
            run_id=target.run_id,
            signer=target.signer,
            rules=target.rules,
            retries=1,
        )

    def _forget_all_but(self, wanted: Path) -> None:
        for path in self._staging.iterdir():
            if path.is_symlink() or _REPORT.fullmatch(path.name):
                path.unlink(missing_ok=True)
            elif path != wanted and Package.parse(path.name) is not None:
                shutil.rmtree(path, ignore_errors=True)

    def _tell(self, held: Manifest, source: Target) -> None:
        self._receiver(source).acknowledge(held.version, held.weights_sha256)
        self.origin_knows = True
        self._note(failures=0)

    def _drift(self, held: Manifest, gives_way: threading.Event | None = None) -> str | None:
        reports = self._phases.ask("audit", held.version, held.dense_bytes, gives_way=gives_way)
        return "; ".join(report["drift"] for report in reports if report["drift"] is not None) or None

    def _published(self, version: int, source: Target) -> Manifest | None:
        """Return the origin's manifest of a version, or None if the origin has none. Raises TransferError."""
        with closing(open_origin(source.url, source.token, rules=source.rules)) as origin:
            package = next((package for package in origin.packages() if package.version == version), None)
            data = None if package is None else origin.manifest_bytes(package)
            manifest = None if data is None else Manifest.from_bytes(data, signer=source.signer)
            return None if manifest is None or manifest.run_id != source.run_id else manifest

    def _confirm(self, held: Manifest) -> str | None:
        reports = self._phases.ask("confirm", held.version, held.dense_bytes)
        name, names = weights_name(held.run_id, held.version), {str(report["name"]) for report in reports}
        if names != {name}:
            return f"it holds weights {', '.join(sorted(names))}, but its record says {name}"
        if drifts := [report["drift"] for report in reports if report["drift"] is not None]:
            return "; ".join(drifts)
        self.held, self.origin_knows = (held.run_id, held.version), False
        self._note(held=True, looked_ns=monotonic_ns())
        return None

    def _note(self, **changes: Any) -> None:
        self.standing = replace(self.standing, **changes)
