"""Brings one engine to a policy version: fetch and verify, decode beside the running model, swap in, acknowledge."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rose.clock import monotonic_ns
from rose.events import Sync
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.receiver import Receiver
from rose.runtime.transfer.staged import Staged

_PHASE_TIMEOUT_S = 60.0


class EngineSync:
    """The agent's side of a sync. `version` is the last version the engine acknowledged: the only base it offers."""

    def __init__(self, engine: EngineProcess, staging: Path, *, device_id: str, route: str) -> None:
        self._engine = engine
        self._staging = staging
        self._device_id = device_id
        self._route = route
        self.version = 0

    def bring_to(self, version: int, url: str, token: str | None, *, step: int | None) -> Sync:
        """Returns the event of what happened; `ok` is false, with the reason, if the engine stayed where it was.

        A delta that the engine refuses (its weights are not the base) is followed by one try from an anchor.
        """
        began = monotonic_ns()
        base: int | None = self.version
        try:
            staged, reports = self._try(version, base, url, token)
        except TransferError as refused:
            base = None
            try:
                staged, reports = self._try(version, base, url, token)
            except TransferError as error:
                return self._event(
                    version, began, step, ok=False, base=base, reason=f"{refused}; then from an anchor: {error}"
                )
        self.version = version
        event = self._event(version, began, step, ok=True, base=base, staged=staged, reports=reports)
        staged.remove()
        return event

    def _try(self, version: int, base: int | None, url: str, token: str | None) -> tuple[Staged, dict[str, Any]]:
        staged = Receiver(url, token, self._staging).fetch(version, base)
        link = self._staging / f"v{version}"
        link.unlink(missing_ok=True)
        link.symlink_to(staged.folder.name)
        try:
            reports = self._phase("prepare", "prepared", version) | self._phase("commit", "committed", version)
        except TransferError:
            staged.remove()
            raise
        finally:
            link.unlink(missing_ok=True)
        return staged, reports

    def _phase(self, verb: str, past: str, version: int) -> dict[str, Any]:
        """Ask the plugin for one phase and wait for its report. Raises TransferError with the plugin's reason."""
        report = self._staging / f"{version}.{past}.json"
        report.unlink(missing_ok=True)
        try:
            self._engine.post("/set_internal_state", {"server_args": {f"rose_{verb}_version": version}})
        except OSError as error:
            raise TransferError(f"engine {self._engine.spec.engine_id} did not take {verb} {version}: {error}")
        deadline = time.monotonic() + _PHASE_TIMEOUT_S
        while not report.exists():
            if time.monotonic() > deadline or not self._engine.alive:
                raise TransferError(f"engine {self._engine.spec.engine_id} did not report on {verb} {version}")
            time.sleep(0.002)
        outcome: dict[str, Any] = json.loads(report.read_text())
        report.unlink()
        if not outcome["ok"]:
            raise TransferError(outcome["reason"])
        return outcome

    def _event(
        self,
        version: int,
        began_ns: int,
        step: int | None,
        *,
        ok: bool,
        base: int | None,
        staged: Staged | None = None,
        reports: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> Sync:
        manifest = None if staged is None else staged.manifests[-1]
        return Sync(
            device_id=self._device_id,
            engine_id=self._engine.spec.engine_id,
            policy_version=version,
            ok=ok,
            base_version=base if staged is None else staged.base_version,
            encoding=("dense" if base is None else "delta") if staged is None else staged.encoding,
            wire_bytes=0 if staged is None else staged.wire_bytes,
            dense_bytes=0 if staged is None else staged.dense_bytes,
            changed_elements=None if staged is None else staged.changed_elements,
            total_elements=None if manifest is None else manifest.total_elements,
            encode_ns=None if staged is None else staged.encode_ns,
            fetch_ns=None if staged is None else staged.fetch_ns + staged.verify_ns,
            stage_ns=None if reports is None else reports["stage_ns"],
            pause_ns=None if reports is None else reports["pause_ns"],
            total_ns=monotonic_ns() - began_ns,
            source="trainer",
            route=self._route,
            step=step,
            sha256=None if reports is None else reports["sha256"],
            reason=reason,
        )
