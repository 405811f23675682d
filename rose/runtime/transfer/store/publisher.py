"""Publishes versions for a trainer that goes on as soon as each can be fetched."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import torch

from rose.runtime.transfer.errors import TransferError
from rose.runtime.transfer.store.store import Published, VersionStore

logger = logging.getLogger(__name__)


class Publisher:
    """The one that publishes to a store. What only those need who join later is written beside the next update."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rose-publish")
        self._rest: Future[Published] | None = None

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Returns once `version` is visible; the tensors may change then. Waits for what is left of the one before.

        Raises TransferError as `VersionStore.publish` does, if the version did not become visible.
        """
        self.wait()
        visible: SimpleQueue[bool] = SimpleQueue()
        publishing = self._thread.submit(self._store.publish, version, tensors, visible=lambda: visible.put(True))
        publishing.add_done_callback(lambda _: visible.put(False))
        if visible.get():
            self._rest = publishing
        else:
            publishing.result()

    def wait(self) -> None:
        """Wait for all of the last version. What it lacks is logged; the next one makes up for it."""
        rest, self._rest = self._rest, None
        if rest is not None:
            try:
                rest.result()
            except TransferError as error:
                logger.warning("%s", error)
