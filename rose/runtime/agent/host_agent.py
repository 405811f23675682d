"""The agents of one host's devices, in one process with one ledger writer. A device that fails is retried alone."""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rose.errors import UserError
from rose.ledger.files import spool
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.agent import AgentSpec, DeviceAgent
from rose.runtime.agent.succession import last_lease, predecessor, same_anchor
from rose.runtime.agent.weights.relays import Relays
from rose.runtime.agent.weights.sync import Via
from rose.runtime.coserving.leases.leasing import LastLease
from rose.runtime.coserving.page import PageError
from rose.runtime.engines.sglang import EngineProcess, EngineSpec

BACK_OFF_FIRST_S = 1.0  #: The first wait before a device is tried again, doubled up to BACK_OFF_MAX_S.
BACK_OFF_MAX_S = 60.0
_LOOK_S = 0.5
_FIRST_LEASE_BITS = 40  # JSON readers keep such a number exactly


class HostAgent:
    def __init__(
        self,
        writer: LedgerWriter,
        specs: Sequence[AgentSpec],
        relays: Relays,
        make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess,
    ) -> None:
        self._relays = relays
        self._devices = {spec.device.id: _Device(spec, writer, relays.via, make_engine) for spec in specs}

    def start(self) -> None:
        for device in self._devices.values():
            device.thread.start()

    def stop(self, *, leave: bool = False) -> set[str]:
        """End all agents. Return the devices whose agents ended properly. `leave` keeps engines. Safe to call twice."""
        if self._devices:
            with ThreadPoolExecutor(len(self._devices), thread_name_prefix="rose-stop") as pool:
                list(pool.map(lambda device: device.stop(leave=leave), self._devices.values()))
        self._relays.stop()
        return {device_id for device_id, device in self._devices.items() if device.ended}

    def faults(self) -> Mapping[str, str]:
        return {device_id: fault for device_id, device in self._devices.items() if (fault := device.fault) is not None}

    def agent(self, device_id: str) -> DeviceAgent | None:
        return self._devices[device_id].agent


class _Device:
    def __init__(
        self, spec: AgentSpec, writer: LedgerWriter, via: Via, make_engine: Callable[[EngineSpec], EngineProcess]
    ) -> None:
        self.agent: DeviceAgent | None = None
        self._spec, self._writer, self._via, self._make_engine = spec, writer, via, make_engine
        self._failed: str | None = "its agent is being started"
        self._stopping = threading.Event()
        self._leave = False
        self.ended = False
        self.thread = threading.Thread(target=self._keep, name=f"device-{spec.device.id}", daemon=True)

    @property
    def fault(self) -> str | None:
        agent = self.agent
        if agent is None:
            return self._failed
        try:
            return agent.check()
        except UserError as error:
            return str(error)

    def stop(self, *, leave: bool) -> None:
        self._leave = leave
        self._stopping.set()
        if self.thread.is_alive():
            self.thread.join()

    def _keep(self) -> None:
        back_off_s = BACK_OFF_FIRST_S
        while not self._stopping.is_set():
            try:
                self._live()
                back_off_s = BACK_OFF_FIRST_S
            except Exception as error:
                text = str(error) if isinstance(error, UserError | PageError) else f"{type(error).__name__}: {error}"
                self._failed = f"{text}; tried again"
                self._stopping.wait(back_off_s)
                back_off_s = min(2 * back_off_s, BACK_OFF_MAX_S)

    def _live(self) -> None:
        writer = self._writer
        writer.flush()
        page, device_id = self._spec.page, self._spec.device.id
        anchor = same_anchor(page, writer.root, writer.run_id, device_id, self._spec.anchor)
        spec = replace(self._spec, anchor=anchor)
        before = predecessor(writer.root, writer.run_id, device_id, anchor)
        agent = DeviceAgent(
            spec,
            writer.record,
            lambda: writer.failure,
            self._make_engine,
            before=before,
            last_lease=self._last_lease(),
            via=self._via,
        )
        self.ended = False
        try:
            agent.start()
            self.agent = agent
            while not self._stopping.wait(_LOOK_S):
                agent.check()
        finally:
            self.agent = None
            self._failed = "its agent has ended"
            agent.stop(leave=self._leave or not self._stopping.is_set())
            self.ended = self._stopping.is_set()

    def _last_lease(self) -> LastLease:
        """Return the device's last lease. The next lease gets the next number. If a spool has no lease of the device,
        the returned number is random, because another host may have recorded leases with low numbers."""
        root = self._writer.root
        last = last_lease(root, self._writer.run_id, self._spec.device.id)
        if last.number or not (root / spool.FOLDER).is_dir():
            return last
        return LastLease(secrets.randbits(_FIRST_LEASE_BITS))
