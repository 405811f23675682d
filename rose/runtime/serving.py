"""The serving engines beside which rollouts run: those of an owner are attached to, and left as they were.

Where a device names none (the demo), the deployment starts one as an owner would, and is the only one that ends it.
Agents, the gateway and rollout workers may die at any time: none of them has a serving engine.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from rose.runtime.cluster import DeploymentError
from rose.runtime.coserving.page import ArbiterPage, PageError, Party
from rose.runtime.coserving.serving import ATTACH, DETACH
from rose.runtime.coserving.settings import PAGES
from rose.runtime.engines.sglang import EngineProcess, EngineSpec

_TIMEOUT_S = 5.0
#: Between two looks at whether an owner's engine is attached: it may have been started again.
_LOOK_S = 5.0
_TEND_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingDevice:
    """A serving device. `spec` None: the engine at `url` is its owner's."""

    device_id: str
    engine_id: str
    url: str
    page: Path
    spec: EngineSpec | None


class ServingEngines:
    """`launch` and `wait_ready` before agents count on them, `attach` once there are pages, `stop` at the very end."""

    def __init__(self, devices: list[ServingDevice], pages: Path = PAGES) -> None:
        self._devices, self._pages = devices, pages
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
            self._looked = time.monotonic()
            for device in self._devices:
                if device.spec is None and not _attached(device.page):
                    try:
                        self._attach(device)
                    except DeploymentError:
                        continue  # It is its owner's to bring back; until then nothing is lent.

    def attach(self) -> None:
        """Show every owner's engine the page of its device. Raises DeploymentError if one does not know pages."""
        for device in self._devices:
            if device.spec is None:
                self._attach(device)
        self._looked = time.monotonic()

    def stop(self) -> None:
        """Let go of what belongs to others and end what was started here."""
        for device in self._devices:
            if device.spec is None:
                try:
                    _set(device.url, DETACH)
                except DeploymentError:
                    continue  # It is gone, and with it what it had of ours.
        for process in self._processes:
            process.stop()

    def _attach(self, device: ServingDevice) -> None:
        # The engine takes a number; no two pages on this host have the same inode.
        number = device.page.stat().st_ino
        self._pages.mkdir(parents=True, exist_ok=True)
        link = self._pages / str(number)
        link.unlink(missing_ok=True)
        link.symlink_to(device.page)
        _set(device.url, number)


def answers(url: str) -> bool:
    """Whether an SGLang server at `url` is well."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False


def _attached(page: Path) -> bool:
    try:
        view = ArbiterPage(page)
    except (PageError, FileNotFoundError):
        return False
    try:
        return view.alive(Party.SERVING)
    finally:
        view.close()


def _set(url: str, number: int) -> None:
    request = urllib.request.Request(
        f"{url}/set_internal_state",
        data=json.dumps({"server_args": {ATTACH: number}}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            taken = json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        raise DeploymentError(_unknown(url, error.read().decode(errors="replace"))) from None
    except (OSError, ValueError) as error:
        raise DeploymentError(
            f"serving at {url} does not answer ({error}): start it, or change `serving_url`"
        ) from None
    # One answer for each scheduler.
    if not isinstance(taken, list) or not taken or not all(taken):
        raise DeploymentError(_unknown(url, f"it answered {taken}"))


def _unknown(url: str, why: str) -> str:
    return (
        f"serving at {url} cannot be lent beside ({why.strip()[:200]}): install rose beside its SGLang, and start it "
        "without ROSE_PLUGIN_ROLE=off"
    )
