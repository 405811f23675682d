"""The plugin's part of a sync, as its agent asks for it: one phase after another, until it leaves the engine."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rose.runtime.coserving.hooks.asking import Verb, question, refusal
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.transfer.errors import TransferError

#: How long an engine may take over one phase, and how many bytes of weights it is given a second more for.
_PHASE_TIMEOUT_S = 60.0
_PHASE_BYTES_PER_S = 50e6
_POLL_S = 0.002
_AUDIT_POLL_S = 0.05
#: How long who gives an engine up waits for one that does not say that it takes a question.
_GIVE_UP_S = 10.0


class Phases:
    """One engine's. `ask` may be called from several threads, and waits for its turn."""

    def __init__(self, engine: EngineProcess, staging: Path) -> None:
        self._engine, self._staging = engine, staging
        self._given_up = threading.Event()
        self._turn = threading.RLock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep the engine from being given up while the block runs. Raises TransferError if it was."""
        with self._turn:
            self._check()
            yield

    def give_up(self) -> None:
        """Ask for nothing from now on. Returns when nothing is asked for any more."""
        self._given_up.set()
        if self._turn.acquire(timeout=_GIVE_UP_S):
            self._turn.release()

    def ask(
        self, verb: Verb, version: int, dense_bytes: int, *, gives_way: threading.Event | None = None
    ) -> list[dict[str, Any]]:
        """Ask for one phase and wait for the report of every rank, unless it `gives_way`.

        Raises TransferError with the reasons.
        """
        with self.turn():
            engine_id = self._engine.spec.engine_id
            for stale in self._staging.glob(f"{version}.{verb}.*.json"):
                stale.unlink()
            try:
                refused = refusal(self._engine.post("/generate", question(verb, version)))
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise TransferError(f"engine {engine_id} did not take {verb} {version}: {error}")
            if refused is not None:
                raise TransferError(f"engine {engine_id} refused {verb} {version}: {refused}")
            return self._reports(verb, version, dense_bytes, gives_way)

    def _reports(
        self, verb: Verb, version: int, dense_bytes: int, gives_way: threading.Event | None
    ) -> list[dict[str, Any]]:
        engine_id = self._engine.spec.engine_id
        deadline = time.monotonic() + _PHASE_TIMEOUT_S + dense_bytes / _PHASE_BYTES_PER_S
        reports: list[dict[str, Any]] = []
        while not reports or len(reports) < reports[0]["ranks"]:
            path = self._staging / f"{version}.{verb}.{len(reports)}.json"
            while not path.exists():
                self._check()
                if gives_way is not None and gives_way.is_set():
                    raise TransferError("the audit gave way to a sync")
                if time.monotonic() > deadline or not self._engine.alive:
                    raise TransferError(f"rank {len(reports)} of engine {engine_id} did not report on {verb} {version}")
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
            raise TransferError("its agent leaves the engine to another")
