"""The serving engines beside which rollouts run: those of an owner are attached to, and left as they were.

Where a device names none (the demo), one is started as an owner would, and only who started it ends it. Agents and the
controller may die at any time: none of them has a serving engine.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rose.runtime.coserving.attach.attaching import AttachError, OwnedEngine, has_engine
from rose.runtime.coserving.attach.attachment import detached_note
from rose.runtime.engines.sglang import AddressInUseError, EngineProcess, EngineSpec
from rose.runtime.errors import DeploymentError

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

    Owners' engines that want a key get that in the environment's `ROSE_SERVING_TOKEN`. `say` is for what a user should
    know.
    """

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
        #: Devices whose engine was started on another port.
        self._moved: set[str] = set()
        self._ready = False
        self._looked: float | None = None

    def url(self, device_id: str) -> str:
        """Where the device's serving engine answers."""
        return self._urls[device_id]

    def launch(self) -> None:
        """Start the engines that have no other owner. Call from a thread that lives as long as they should."""
        for device_id in self._processes:
            self._launch(device_id)

    def wait_ready(self, tend: Callable[[], None]) -> None:
        """Return once every engine started here answers, and keep it to its cores. `tend` is called meanwhile.

        Call from the thread that launched them. Raises EngineError, and what `tend` raises.
        """
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
        """Attach again to an owner's engine that lost its page, and see that ours live. Raises DeploymentError."""
        # Until they are ready, waiting for them says what became of them.
        for process in self._processes.values() if self._ready else ():
            if not process.alive:
                raise DeploymentError(
                    f"serving engine {process.spec.engine_id} died. The end of {process.spec.log}:\n"
                    f"{process.log_tail()}"
                )
        if self._looked is not None and time.monotonic() - self._looked >= _LOOK_S:
            for device in self._owned:
                if not has_engine(device.page) and not detached_note(device.page).exists():
                    self._attach_again(device)
            self._looked = time.monotonic()

    def attach(self, tend: Callable[[], None] = lambda: None) -> None:
        """Show every owner's engine the page of its device, and see that it takes it. `tend` is called meanwhile.

        Raises AttachError, and what `tend` raises.
        """
        for device in self._owned:
            OwnedEngine(device.url, self._token).attach(device.page, tend)
        self._looked = time.monotonic()

    def stop(self) -> None:
        """Let go of what belongs to others and end what was started here."""
        for device in self._owned:
            # One that is gone has nothing of ours; one whose owner gave it another page keeps that.
            with suppress(AttachError):
                if has_engine(device.page):
                    OwnedEngine(device.url, self._token).detach(by_owner=False)
        for process in self._processes.values():
            process.stop()

    def _launch(self, device_id: str) -> None:
        try:
            self._processes[device_id].launch()
        except AddressInUseError as error:
            self._move(device_id, error)

    def _move(self, device_id: str, error: AddressInUseError) -> None:
        """Launch the engine once more, on another port. Raises `error` if it has to be on this one."""
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
