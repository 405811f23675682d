"""Runs serving engines. An owner's engine is attached, and released at the end. ROSE's own are started and ended."""

import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rose.runtime.coserving.attach.attaching import AttachError, OwnedEngine, has_engine
from rose.runtime.coserving.attachment import detached_note
from rose.runtime.engines.sglang import AddressInUseError, EngineProcess, EngineSpec
from rose.runtime.errors import DeploymentError

_TIMEOUT_S = 5.0
_LOOK_S = 5.0  # Time between looks at an owner's engine, which may have restarted.
_TEND_S = 0.2
_AGAIN_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingDevice:
    device_id: str
    engine_id: str
    url: str
    page: Path
    spec: EngineSpec | None


class ServingEngines:
    """Serving engines. Call `launch` and `wait_ready` before agents start, then `attach`, and `stop` at the end."""

    def __init__(
        self,
        devices: list[ServingDevice],
        say: Callable[[str], None] = lambda _: None,
        make: Callable[[EngineSpec], EngineProcess] = EngineProcess,
    ) -> None:
        self._token, self._say, self._make = os.environ.get("ROSE_SERVING_TOKEN"), say, make
        self._urls = {device.device_id: device.url for device in devices}
        self._owned = [device for device in devices if device.spec is None]
        self._processes = {device.device_id: make(device.spec) for device in devices if device.spec is not None}
        self._moved: set[str] = set()
        self._ready = False
        self._looked: float | None = None

    def url(self, device_id: str) -> str:
        return self._urls[device_id]

    def launch(self) -> None:
        """Start ROSE's own engines. Call this from a thread that lives as long as the engines do."""
        for device_id, process in list(self._processes.items()):
            try:
                process.launch()
            except AddressInUseError as error:
                self._move(device_id, error)

    def wait_ready(self, tend: Callable[[], None]) -> None:
        """Wait until launched engines are ready. Calls `tend` meanwhile. Raises EngineError, or an error of `tend`."""
        if not self._processes:
            return
        waiting = ThreadPoolExecutor(len(self._processes), thread_name_prefix="rose-serving")
        try:
            answers = {waiting.submit(process.wait_ready): name for name, process in self._processes.items()}
            while answers:
                for answer in wait(answers, timeout=_TEND_S, return_when=FIRST_COMPLETED).done:
                    device_id = answers.pop(answer)
                    try:
                        answer.result()
                    except AddressInUseError as error:
                        self._move(device_id, error)
                        answers[waiting.submit(self._processes[device_id].wait_ready)] = device_id
                tend()
        finally:
            waiting.shutdown(wait=False)
        for process in self._processes.values():
            process.settle()
        self._ready = True

    def check(self) -> None:
        """Attach owners' engines that lost their page. Raises DeploymentError if one of ROSE's own engines died."""
        for process in self._processes.values() if self._ready else ():
            if not process.alive:
                raise DeploymentError(f"{process.spec.engine_id} died. See {process.spec.log}:\n{process.log_tail()}")
        if self._looked is not None and time.monotonic() - self._looked >= _LOOK_S:
            for device in self._owned:
                if not has_engine(device.page) and not detached_note(device.page).exists():
                    self._attach_again(device)
            self._looked = time.monotonic()

    def attach(self, tend: Callable[[], None] = lambda: None) -> None:
        """Attach owners' engines to their pages. Calls `tend` meanwhile. Raises AttachError, or an error of `tend`."""
        for device in self._owned:
            OwnedEngine(device.url, self._token).attach(device.page, tend)
        self._looked = time.monotonic()

    def stop(self) -> None:
        for device in self._owned:
            with suppress(AttachError):  # An engine that is gone, or has another page by its owner, needs no detaching.
                if has_engine(device.page):
                    OwnedEngine(device.url, self._token).detach(by_owner=False)
        for process in self._processes.values():
            process.stop()

    def _move(self, device_id: str, error: AddressInUseError) -> None:
        former = self._processes[device_id]
        spec = None if device_id in self._moved else former.spec.elsewhere()
        if spec is None:
            raise error
        former.kill()
        self._moved.add(device_id)
        process = self._processes[device_id] = self._make(spec)
        self._urls[device_id] = process.url
        self._say(f"port {former.spec.port} of serving on {device_id} was taken: it is started again at {process.url}")
        process.launch()

    def _attach_again(self, device: ServingDevice) -> None:
        engine = OwnedEngine(device.url, self._token, _TIMEOUT_S)
        with suppress(AttachError):  # Its owner decides; until then nothing is lent.
            state = engine.state()
            if state is None or not state.detached:
                engine.attach(device.page, timeout_s=_AGAIN_TIMEOUT_S)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_TIMEOUT_S):
            return True
    except (OSError, ValueError):
        return False
