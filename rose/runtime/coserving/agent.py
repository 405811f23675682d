"""The agent of one device: its engines, its leases, its accounts, its heartbeats.

One thread owns leases and accounts and works every heartbeat; callers (an RL step beginning, a new version) leave
what they want under a lock and it acts on the next one, or they wait for an engine themselves (sync).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rose.clock import Anchor, monotonic_ns
from rose.config import CoservingConfig, DeviceConfig
from rose.events import Ledger, Record, Sync
from rose.ledger.layout import LedgerError
from rose.runtime.coserving.accountant import Accountant
from rose.runtime.coserving.device_events import record_device, record_engine
from rose.runtime.coserving.drift import DriftGuard
from rose.runtime.coserving.leasing import Leasing
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.coserving.sync import EngineSync
from rose.runtime.engines.sglang import EngineError, EngineProcess, EngineSpec
from rose.runtime.policy.kv import KvMemory, initial_budget_bytes, under_pressure
from rose.runtime.policy.lease import BorrowCase, must_revoke, worth_borrowing
from rose.runtime.policy.slack import Budgets, Hold, LeaseTerms
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import EngineReport, Heartbeat, PreemptRequest

#: After a revoked lease the device is left to serving for this long.
COOL_DOWN_NS = 3_000_000_000
#: Device slices are recorded this often.
SLICE_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    """What an agent is told when it is made. `*_kv_bytes_per_token` follow from the models' shapes."""

    device: DeviceConfig
    coserving: CoservingConfig
    budgets: Budgets
    max_prompt_tokens: int
    run_id: str
    anchor: Anchor
    page: Path
    staging: Path
    rollout: EngineSpec | None
    rollout_capacity: int
    rollout_kv_bytes_per_token: int
    serving: EngineSpec | None
    serving_kv_bytes_per_token: int
    gateway_url: str
    gateway_token: str | None
    route: str
    #: What the URLs are that it is told to sync from: "trainer" or "relay".
    source: str = "trainer"


class DeviceAgent:
    """Start with `start()`; then `open_step`, `close_step` and `sync` as the RL loop goes; end with `stop()`."""

    def __init__(
        self, spec: AgentSpec, record: Record, ledger_failure: Callable[[], str | None] = lambda: None
    ) -> None:
        self._spec = spec
        self._record = record
        self._page = ArbiterPage.create(spec.page)
        self._page.set_budgets(spec.budgets, spec.max_prompt_tokens)
        self._engines: list[tuple[Literal["serving", "rollout"], EngineProcess]] = []
        self._began_ns = monotonic_ns()
        self._control = ControlClient(spec.gateway_url, spec.gateway_token)
        self._leasing: Leasing | None = None
        if spec.rollout is not None and spec.device.pool == "serving":
            self._leasing = Leasing(
                device_id=spec.device.id,
                engine_id=spec.rollout.engine_id,
                page=self._page,
                anchor=spec.anchor,
                ttl_ns=int(spec.coserving.lease_ttl_s * 1e9),
                kv_bytes_per_token=spec.rollout_kv_bytes_per_token,
                id_prefix=spec.run_id,
                record=record,
                ledger_failure=ledger_failure,
            )
        self._accountant = Accountant(
            spec.device.id,
            self._page,
            spec.anchor,
            self._began_ns,
            record,
            engine_id=None if spec.rollout is None else spec.rollout.engine_id,
            leases=[] if self._leasing is None else self._leasing.history,
        )
        self._sync: EngineSync | None = None
        self._guard: DriftGuard | None = None
        self._lock = threading.Lock()
        self._wanted: tuple[int, int] | None = None  # step, expected length in ns
        self._not_before_ns = 0
        #: The step whose budget was cut, and to what: a second lease of that step starts no higher.
        self._frozen: dict[int, int] = {}
        self._switch_ns = 0
        self._serving_share = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Launch the device's engines and return when each has answered. Raises EngineError; nothing is left then."""
        spec = self._spec
        device = spec.device
        record_device(self._record, spec, "joined", self._began_ns)
        if spec.serving is not None:
            self._engines.append(("serving", EngineProcess(spec.serving)))
        if spec.rollout is not None:
            engine = EngineProcess(spec.rollout)
            self._engines.append(("rollout", engine))
            self._sync = EngineSync(engine, spec.staging, device_id=device.id, route=spec.route, source=spec.source)
            audit_s = spec.coserving.drift_audit_s
            self._guard = DriftGuard(self._sync, audit_s, take_out=self._take_out, record=self._record)
        spec.staging.mkdir(parents=True, exist_ok=True)
        try:
            launched = monotonic_ns()
            for _, engine in self._engines:
                engine.launch()
            for role, engine in self._engines:
                self._warm(engine)
                engine.settle()
                duration_ns = monotonic_ns() - launched
                record_engine(self._record, spec, role, engine, "started", duration_ns=duration_ns)
            # The device did nothing but bring its engines up.
            self._accountant.add(SpanRecord(Span.ACTIVATION, launched, monotonic_ns(), 0))
        except EngineError:
            self.stop()
            raise
        self._thread = threading.Thread(target=self._loop, name=f"agent-{device.id}", daemon=True)
        self._thread.start()
        if self._guard is not None:
            self._guard.start()

    def _warm(self, engine: EngineProcess) -> None:
        """A gated engine answers only under a lease: lend it the device for its own start."""
        gated = engine.spec.plugin.gated
        if gated:
            self._page.set_lease(0, LeaseTerms(monotonic_ns() + 600_000_000_000, 1.0, 1 << 40))
        engine.wait_ready()
        if gated:
            self._page.set_lease(0, LeaseTerms(0, 0.0, 0))

    def stop(self) -> None:
        """End leases, engines and the device's time in the fleet, in that order. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._guard is not None:
            self._guard.stop()
        if self._thread is not None:
            self._thread.join()
        if self._leasing is not None and self._leasing.state is not None:
            self._leasing.end("released", "the run stopped")
        for role, engine in reversed(self._engines):
            was_alive = engine.alive
            engine.stop()
            if was_alive:
                record_engine(self._record, self._spec, role, engine, "stopped")
        left = monotonic_ns()
        self._accountant.close(left, final=True)
        # How far the slices can be off: spans that came after their slice was closed, spans a full ring lost.
        self._record(
            Ledger(
                device_id=self._spec.device.id,
                action="slices_closed",
                detail_json=json.dumps(
                    {"late_ns": self._accountant.late_ns, "lost_spans": self._accountant.lost_spans}
                ),
            )
        )
        record_device(self._record, self._spec, "left", left)

    # ------------------------------------------------------------------ the RL loop's calls

    def open_step(self, step: int, expected_ns: int) -> None:
        """Rollouts of `step` begin: a serving device may be borrowed from the next heartbeat on."""
        with self._lock:
            self._wanted = (step, expected_ns)

    def close_step(self) -> None:
        """Rollouts of the step are in: give the device back."""
        with self._lock:
            self._wanted = None
            if self._leasing is not None and self._leasing.state is not None:
                self._leasing.end("released", "rollouts of the step are in")

    def sync(self, version: int, url: str, token: str | None, step: int | None) -> Sync | None:
        """Bring this device's rollout engine to `version` and record it. None where there is no rollout engine."""
        if self._sync is None:
            return None
        event = self._sync.bring_to(version, url, token, step=step)
        self._switch_ns = event.total_ns
        # The engine has its new weights; an event that cannot be written now waits in the writer's queue.
        with suppress(LedgerError):
            self._record(event)
        return event

    def check(self) -> str | None:
        """Why nothing is lent although it could be: the ledger cannot be written. None while it can.

        Raises EngineError if an engine died or the agent's thread failed.
        """
        failure = self._failure or (self._guard and self._guard.failure)
        if failure:
            raise EngineError(failure)
        return None if self._leasing is None else self._leasing.failure

    # ------------------------------------------------------------------ the agent's thread

    def _loop(self) -> None:
        heartbeat_s = self._spec.coserving.heartbeat_s
        last_slice_ns = monotonic_ns()
        try:
            while not self._stopping.wait(heartbeat_s):
                now = monotonic_ns()
                with self._lock:
                    self._watch_engines()
                    self._keep_lease(now)
                if now - last_slice_ns >= SLICE_NS:
                    last_slice_ns = now
                    slices = self._accountant.close(now)
                    total_ns = sum(part.t1_ns - part.t0_ns for part in slices)
                    if total_ns:
                        self._serving_share = sum(part.serving_ns for part in slices) / total_ns
        except Exception as error:
            self._failure = f"agent of device {self._spec.device.id} failed: {type(error).__name__}: {error}"
            raise

    def _watch_engines(self) -> None:
        for role, engine in self._engines:
            if not engine.alive and self._failure is None:
                self._failure = (
                    f"engine {engine.spec.engine_id} on device {self._spec.device.id} died. "
                    f"The end of {engine.spec.log}:\n{engine.log_tail()}"
                )
                with suppress(LedgerError):
                    record_engine(self._record, self._spec, role, engine, "died", reason="the process ended")

    def _keep_lease(self, now_ns: int) -> None:
        """One heartbeat: report to the gateway, renew what it still wants, and take back what serving needs."""
        leasing = self._leasing
        if leasing is not None and leasing.state is not None:
            load = self._page.serving_load()
            memory = self._memory()
            if leasing.state.expires_ns <= now_ns:
                leasing.end("expired", "not renewed: the gateway was away or wanted it no longer")
            elif must_revoke(load, self._spec.budgets, now_ns):
                self._take_back("revoke", "serving is late on a request", None)
                leasing.end("preempted", "serving is late on a request")
                self._not_before_ns = now_ns + COOL_DOWN_NS
            elif under_pressure(memory) and not leasing.state.frozen:
                before = leasing.state.kv_budget_bytes
                after = leasing.cut("serving grew into its headroom")
                if after is not None:
                    self._frozen = {leasing.state.step: after}
                    self._take_back(
                        "cut", "serving grew into its headroom", max(0, memory.rollout_bytes - after), before
                    )
            elif memory.rollout_bytes > leasing.state.kv_budget_bytes:
                over = memory.rollout_bytes - leasing.state.kv_budget_bytes
                self._take_back("cut", "rollouts outgrew their budget", over, leasing.state.kv_budget_bytes)
        if leasing is not None and leasing.state is None and self._wanted is not None:
            self._try_grant(leasing, now_ns)
        reply = self._report(now_ns)
        if reply and leasing is not None and leasing.state is not None and leasing.state.lease_id in reply:
            leasing.renew(monotonic_ns())

    def _try_grant(self, leasing: Leasing, now_ns: int) -> None:
        assert self._wanted is not None
        step, expected_ns = self._wanted
        case = BorrowCase(expected_ns, 1.0 - self._serving_share, self._switch_ns)
        late = must_revoke(self._page.serving_load(), self._spec.budgets, now_ns)
        if now_ns < self._not_before_ns or late or not worth_borrowing(case):
            return
        budget = initial_budget_bytes(self._memory())
        if budget > 0:
            frozen_bytes = self._frozen.get(step)
            leasing.grant(
                step=step,
                kv_budget_bytes=budget if frozen_bytes is None else min(budget, frozen_bytes),
                compute_share=self._spec.coserving.compute_share,
                now_ns=now_ns,
                frozen=frozen_bytes is not None,
            )

    def _take_back(
        self, action: Literal["cut", "revoke"], reason: str, over_bytes: int | None, before: int | None = None
    ) -> None:
        """Have the gateway abort and reroute what no longer fits; an absent gateway means there is nothing to abort."""
        assert self._leasing is not None
        assert self._leasing.state is not None
        assert self._spec.rollout is not None
        tokens = None if over_bytes is None else -(-over_bytes // self._spec.rollout_kv_bytes_per_token)
        try:
            reply = self._control.preempt(
                PreemptRequest(engine_id=self._spec.rollout.engine_id, kv_tokens=tokens, reason=reason)
            )
            requests = reply.requests
        except OSError:
            requests = 0
        state = self._leasing.state
        self._leasing.record_preemption(
            action,
            reason,
            before=state.kv_budget_bytes if before is None else before,
            after=0 if action == "revoke" else state.kv_budget_bytes,
            requests=requests,
        )

    def _take_out(self, reason: str) -> None:
        """The rollout engine's weights are not what they should be: turns on it go on elsewhere, and none comes."""
        assert self._spec.rollout is not None
        self._report(monotonic_ns())
        with suppress(OSError):
            self._control.preempt(PreemptRequest(engine_id=self._spec.rollout.engine_id, kv_tokens=None, reason=reason))

    def _memory(self) -> KvMemory:
        used = {
            Party.SERVING: self._spec.serving_kv_bytes_per_token,
            Party.ROLLOUT: self._spec.rollout_kv_bytes_per_token,
        }
        held = {party: self._page.get(party, Field.KV_TOKENS_USED) * each for party, each in used.items()}
        return KvMemory(
            device_bytes=self._spec.device.kv_bytes,
            serving_bytes=held[Party.SERVING],
            rollout_bytes=held[Party.ROLLOUT],
            headroom=self._spec.coserving.headroom,
            high_watermark=self._spec.coserving.high_watermark,
        )

    def _report(self, now_ns: int) -> list[str]:
        """Heartbeat to the gateway; returns the leases it wants renewed, none if it is away."""
        rollout = next((engine for role, engine in self._engines if role == "rollout"), None)
        if rollout is None or self._sync is None:
            return []
        state = None if self._leasing is None else self._leasing.state
        borrowed = self._leasing is not None
        report = EngineReport(
            engine_id=rollout.spec.engine_id,
            device_id=self._spec.device.id,
            url=rollout.url,
            borrowed=borrowed,
            alive=rollout.alive and self._sync.standing.trusted,
            capacity=self._spec.rollout_capacity,
            policy_version=self._sync.version,
            lease_id=None if state is None else state.lease_id,
            lease_left_ns=None if state is None else max(0, state.expires_ns - now_ns),
            slack_ok=not borrowed or self._has_slack(),
        )
        try:
            return self._control.heartbeat(Heartbeat(device_id=self._spec.device.id, engines=[report])).renew
        except OSError:
            return []

    def _has_slack(self) -> bool:
        """Whether a held rollout step waits for more than serving's current step."""
        held = self._page.open(Party.ROLLOUT, monotonic_ns())
        if held is None or held.kind is not Span.HELD:
            return True
        return self._page.get(Party.ROLLOUT, Field.LAST_HOLD) == Hold.SERVING_STEP
