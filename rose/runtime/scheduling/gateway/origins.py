"""Publishes checkpoint folders of clients. A separate process holds the weights in memory."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rose.runtime.engines.launch import die_with_parent
from rose.runtime.scheduling.messages import PublishVersion
from rose.runtime.scheduling.refusals import RefusedError
from rose.runtime.scheduling.runs.registry import Run
from rose.transfer.errors import TransferError

if TYPE_CHECKING:
    from rose.client.publishing import WeightOrigin
    from rose.runtime.scheduling.controller import Controller

logger = logging.getLogger(__name__)
T = TypeVar("T")


class FolderOrigins:
    """Publishes folders of runs, and serves them at the address `host`. `folder` has a weight store for each run."""

    def __init__(self, controller: Controller, folder: Path, host: str, checkpoint: Callable[[str], Path]) -> None:
        self._controller, self._folder, self._host, self._checkpoint = controller, folder, host, checkpoint
        self._process: ProcessPoolExecutor | None = None
        self._publishing: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process is not None:
            self._process.shutdown(wait=False, cancel_futures=True)
            for process in list((self._process._processes or {}).values()):
                process.kill()

    def restore(self) -> None:
        for store in self._folder.glob("*") if self._folder.is_dir() else ():
            runs = (run for run in self._controller.runs if run.facts.state != "closed")
            run = next((run for run in runs if run.run_id == store.name), None)
            if run is None:
                shutil.rmtree(store, ignore_errors=True)
            elif run.is_open and run.facts.version is not None:
                self._later(run, run.facts.version, None)

    def publish_checkpoint(self, run: Run) -> None:
        if run.run_id not in self._publishing:
            self._later(run, 0, self._checkpoint)

    def _later(self, run: Run, version: int, folder: Callable[[str], Path] | None) -> None:
        async def publish() -> None:
            try:
                weights = None if folder is None else await asyncio.to_thread(folder, run.facts.model)
                await self.publish(run, weights, version)
            except Exception as error:
                why = f"version {version} of run {run.run_id} cannot be published: {error}"
                logger.warning(why)
                self._publishing.pop(run.run_id, None)
                self._controller.end_turns(run.run_id, why)

        self._publishing.setdefault(run.run_id, asyncio.Lock())
        task = asyncio.create_task(publish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def publish(self, run: Run, weights: Path | None, version: int | None = None) -> int:
        """Publish the folder `weights` (None: a version that is already stored). Return the version."""
        async with self._publishing.setdefault(run.run_id, asyncio.Lock()):
            checkpoint = await asyncio.to_thread(self._checkpoint, run.facts.model)
            if weights is not None and (delta_version := await self._run(_delta_version, weights)) is not None:
                if version not in (None, delta_version):
                    why = f"weight_version is {version}, but the delta {str(weights)!r} makes version {delta_version}"
                    raise RefusedError(409, f"{why}: give that version")
                version = delta_version
                if run.facts.version is None:
                    await self._publish(run, checkpoint, 0, checkpoint)
            newest = run.facts.version
            if version is None:
                version = 0 if newest is None else newest + 1
            await self._publish(run, weights, version, checkpoint)
            return version

    async def _publish(self, run: Run, weights: Path | None, version: int, checkpoint: Path) -> None:
        fence = run.facts.fence
        place = (self._folder / run.run_id, self._host, run.run_id, fence)
        origin = await self._run(_publish, *place, version, weights, checkpoint)
        message = PublishVersion(fence=fence, version=version, **origin)
        self._controller.publish(run.run_id, message, self._host)

    async def _run(self, act: Callable[..., T], *arguments: object) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool(), act, *arguments)
        except BrokenProcessPool:
            self._process = None
            raise TransferError("the publishing process ended, and the version is lost: publish it again") from None

    def _pool(self) -> ProcessPoolExecutor:
        if self._process is None:
            self._process = ProcessPoolExecutor(1, get_context("spawn"), die_with_parent, (os.getpid(),))
        return self._process


_origins: dict[str, tuple[int, WeightOrigin]] = {}  # In the serving process: by run, with its fence.


def _delta_version(folder: Path) -> int | None:
    from rose.transfer.sources.delta import Delta

    delta = Delta.read(folder)
    return None if delta is None else delta.version


def _publish(
    folder: Path, host: str, run_id: str, fence: int, version: int, weights: Path | None, checkpoint: Path
) -> dict[str, str]:
    from rose.client.publishing import WeightOrigin

    current_fence, origin = _origins.get(run_id, (0, None))
    if origin is None or current_fence != fence:
        if origin is not None:
            origin.close()
        origin = WeightOrigin(folder, host, run_id=run_id, fence=fence, checkpoint=checkpoint)
        _origins[run_id] = fence, origin
    if weights is not None:
        origin.publish(weights, version)
    sha256 = origin.weights_sha256(version)
    return {"url": origin.url, "token": origin.token, "signer": origin.signer, "weights_sha256": sha256}
