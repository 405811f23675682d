"""Attaches owners' serving engines to the pages of their devices, and releases them at the end."""

import os
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rose.runtime.coserving.attach.attaching import AttachError, OwnedEngine, has_engine
from rose.runtime.coserving.attachment import detached_note

_TIMEOUT_S = 5.0
_LOOK_S = 5.0  # Time between looks at an owner's engine, which may have restarted.
_AGAIN_TIMEOUT_S = 1.0


class AttachedEngine:
    """A serving engine at `url`. Call `attach` once the page exists, then `check` regularly, and `stop` at the end."""

    def __init__(self, url: str, page: Path) -> None:
        self._url, self._page, self._token = url, page, os.environ.get("ROSE_SERVING_TOKEN")
        self._looked = time.monotonic()

    def attach(self, tend: Callable[[], None] = lambda: None) -> None:
        """Attach the engine to its page. Calls `tend` meanwhile. Raises AttachError, or an error of `tend`."""
        OwnedEngine(self._url, self._token).attach(self._page, tend)
        self._looked = time.monotonic()

    def check(self) -> None:
        """Attach the engine again if it lost its page, unless its owner detached it."""
        if time.monotonic() - self._looked < _LOOK_S:
            return
        if not has_engine(self._page) and not detached_note(self._page).exists():
            engine = OwnedEngine(self._url, self._token, _TIMEOUT_S)
            with suppress(AttachError):  # Its owner decides; until then nothing is lent.
                state = engine.state()
                if state is None or not state.detached:
                    engine.attach(self._page, timeout_s=_AGAIN_TIMEOUT_S)
        self._looked = time.monotonic()

    def stop(self) -> None:
        with suppress(AttachError):  # An engine that is gone, or has another page by its owner, needs no detaching.
            if has_engine(self._page):
                OwnedEngine(self._url, self._token).detach(by_owner=False)


def answers(url: str) -> bool:
    with suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/health", timeout=_TIMEOUT_S):
        return True
    return False
