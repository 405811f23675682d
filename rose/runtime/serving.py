"""The serving engines beside which rollouts run: those of an owner are attached to, and left as they were.

Where a device names none (the demo), the deployment starts one as an owner would, and is the only one that ends it.
Agents, the gateway and rollout workers may die at any time: none of them has a serving engine.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rose.runtime.cluster import DeploymentError
from rose.runtime.coserving.attaching import AttachError, OwnedEngine, has_engine
from rose.runtime.coserving.settings import PAGES
from rose.runtime.engines.sglang import EngineProcess, EngineSpec

_TIMEOUT_S = 5.0
#: Between two looks at whether an owner's engine is attached: it may have been started again.
_LOOK_S = 5.0
_TEND_S = 0.2
#: An engine that was started again is not waited for: there is another look.
_AGAIN_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingDevice:
    """A serving device. `spec` None: the engine at `url` is its owner's."""

    device_id: str
    engine_id: str
    url: str
    page: Path
    spec: EngineSpec | None


class ServingEngines:
    """`launch` and `wait_ready` before agents count on them, `attach` once there are pages, `stop` at the very end.

    Owners' engines that want a key get that in the environment's `ROSE_SERVING_TOKEN`.
    """

    def __init__(self, devices: list[ServingDevice], pages: Path = PAGES) -> None:
        self._token, self._pages = os.environ.get("ROSE_SERVING_TOKEN"), pages
        self._owned = [device for device in devices if device.spec is None]
        self._processes = [EngineProcess(device.spec) for device in devices if device.spec is not None]
        self._looked: float | None = None

    def launch(self) -> None:
        """Start the engines that have no other owner. Call from a thread that lives as long as they should."""
        for process in self._processes:
            process.launch()

    def wait_ready(self, tend: Callable[[], None]) -> None:
        """Return once every engine started here answers, and keep it to its cores. `tend` is called meanwhile.

        Raises EngineError, and what `tend` raises.
        """
        if not self._processes:
            return
        waiting = ThreadPoolExecutor(len(self._processes), thread_name_prefix="rose-serving")
        try:
            ready = [waiting.submit(process.wait_ready) for process in self._processes]
            while wait(ready, timeout=_TEND_S).not_done:
                tend()
        finally:
            waiting.shutdown(wait=False)
        for process, answer in zip(self._processes, ready, strict=True):
            answer.result()
            process.settle()

    def check(self) -> None:
        """Attach again to an owner's engine that lost its page, and see that ours live. Raises DeploymentError."""
        for process in self._processes:
            if not process.alive:
                raise DeploymentError(
                    f"serving engine {process.spec.engine_id} died. The end of {process.spec.log}:\n"
                    f"{process.log_tail()}"
                )
        if self._looked is not None and time.monotonic() - self._looked >= _LOOK_S:
            for device in self._owned:
                if not has_engine(device.page):
                    self._attach_again(device)
            self._looked = time.monotonic()

    def attach(self, tend: Callable[[], None] = lambda: None) -> None:
        """Show every owner's engine the page of its device, and see that it takes it. `tend` is called meanwhile.

        Raises AttachError, and what `tend` raises.
        """
        for device in self._owned:
            OwnedEngine(device.url, self._token, self._pages).attach(device.page, tend)
        self._looked = time.monotonic()

    def stop(self) -> None:
        """Let go of what belongs to others and end what was started here."""
        for device in self._owned:
            # One that is gone has nothing of ours; one whose owner gave it another page keeps that.
            with suppress(AttachError):
                if has_engine(device.page):
                    OwnedEngine(device.url, self._token, self._pages).detach(by_owner=False)
        for process in self._processes:
            process.stop()

    def _attach_again(self, device: ServingDevice) -> None:
        engine = OwnedEngine(device.url, self._token, self._pages, _TIMEOUT_S)
        # It is its owner's to bring back, and to let go of; until then nothing is lent.
        with suppress(AttachError):
            state = engine.state()
            if state is None or not state.detached:
                engine.attach(device.page, timeout_s=_AGAIN_TIMEOUT_S)


def answers(url: str) -> bool:
    """Whether an SGLang server at `url` is well."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
