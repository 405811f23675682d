"""The agent of one device: its rollout engine, leases, accounts and heartbeats. If it fails, serving continues."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rose import private_files
from rose.clock import Anchor, monotonic_ns
from rose.config import CoservingConfig, DeviceConfig, ServingConfig
from rose.events import Device, Engine, Event, LedgerAction, Record
from rose.ledger.files.layout import LedgerError
from rose.runtime.agent.control import Control
from rose.runtime.agent.rollout_engine import EngineAction, RolloutEngine, rollout_event
from rose.runtime.agent.succession import Predecessor, recorded_run
from rose.runtime.agent.watches import Minute, ServingWatch, StepTimeWatch
from rose.runtime.agent.weights.sync import Target, Via
from rose.runtime.agent.weights.weight_keeper import WeightKeeper
from rose.runtime.coserving.accounts.accountant import LAG_NS, Accountant
from rose.runtime.coserving.accounts.requests import RequestRecorder
from rose.runtime.coserving.accounts.slices import Assignments
from rose.runtime.coserving.kv.activation import Move
from rose.runtime.coserving.leases.leasing import LastLease, Leasing, lease_id_of
from rose.runtime.coserving.leases.withholding import Withholding, rules
from rose.runtime.coserving.meter.hardware import hardware_id
from rose.runtime.coserving.meter.meter import DeviceMeter
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.engines.sglang import EngineError, EngineProcess, EngineSpec
from rose.runtime.memory_plan import kv_memory
from rose.runtime.policy.credit import share_of_busy
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.lease import LeaseFacts, LeaseRules, LeaseState, refusal
from rose.runtime.policy.lending import Reason
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.serving import ServingHistory
from rose.runtime.policy.slack import Budgets, Hold
from rose.runtime.scheduling.client import ControlClient
from rose.runtime.scheduling.messages import BesideReport, EngineReport, HostFacts, Terms
from rose.transfer.wire.origin_rules import OriginRules


def budgets(promised: ServingConfig | Terms) -> Budgets:
    classes = {
        item.priority: Budgets(round(item.ttft_budget_ms * 1e6), round(item.tpot_budget_ms * 1e6))
        for item in promised.classes
    }
    return Budgets(round(promised.ttft_budget_ms * 1e6), round(promised.tpot_budget_ms * 1e6), classes=classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentSpec:
    device: DeviceConfig
    coserving: CoservingConfig
    budgets: Budgets
    max_prompt_tokens: int
    run_id: str
    anchor: Anchor
    page: Path
    staging: Path
    rollout: EngineSpec | None
    serving_model: str
    serving_kv_bytes_per_token: int
    gateway_url: str
    other_models: Mapping[str, EngineSpec] = field(default_factory=dict)
    agent_token: str = field(default="", repr=False)
    host: str | None = None
    host_facts: Callable[[], HostFacts] | None = None

    @property
    def models(self) -> Mapping[str, EngineSpec]:
        return {} if self.rollout is None else {self.rollout.model_name: self.rollout, **self.other_models}

    @property
    def serving_engine_id(self) -> str:
        return f"{self.device.id}-serving"

    @property
    def rollout_kv_bytes_per_token(self) -> int:
        return 0 if self.rollout is None else self.rollout.kv_bytes_per_token

    def with_model(self, name: str) -> AgentSpec:
        others = {other: engine for other, engine in self.models.items() if other != name}
        return dataclasses.replace(self, rollout=self.models[name], other_models=others)

    def with_terms(self, terms: Terms) -> AgentSpec:
        coserving = self.coserving.model_copy(update=terms.coserving)
        return dataclasses.replace(
            self, coserving=coserving, budgets=budgets(terms), max_prompt_tokens=terms.max_prompt_tokens
        )

    def memory(self) -> KvMemory:
        token_bytes = self.serving_kv_bytes_per_token, self.rollout_kv_bytes_per_token
        return kv_memory(self.device, self.coserving, *token_bytes)


def record_device(
    record: Record, spec: AgentSpec, action: Literal["joined", "left"], at_ns: int, hardware_id: str
) -> None:
    device = spec.device
    record(
        Device(
            at_us=spec.anchor.utc_us(at_ns),
            device_id=device.id,
            action=action,
            t_ns=spec.anchor.utc_ns(at_ns),
            pool=device.pool,
            device_class=device.device_class,
            memory_bytes=device.kv_bytes,
            hardware_id=hardware_id,
        )
    )


def moved_event(spec: AgentSpec, span: SpanRecord, lease_id: str | None, pid: int | None) -> Engine:
    move = Move.from_aux(span.aux)
    action: EngineAction = "deactivated" if move.away else "activated"
    event = rollout_event(spec, action, pid, duration_ns=span.end_ns - span.start_ns)
    reason = None
    if move.weights_alone:
        lease_id, reason = None, "the weights alone, for a sync"
    elif event.memory_mechanism == "remap" or spec.device.gpu is None:
        reason = "the KV pool alone"
    return dataclasses.replace(
        event, at_us=spec.anchor.utc_us(span.start_ns), lease_id=lease_id, reason=reason, moved_bytes=move.moved_bytes
    )


def _rules(coserving: CoservingConfig) -> LeaseRules:
    policy = POLICIES[coserving.policy]
    return LeaseRules(
        ttl_ns=int(coserving.lease_ttl_s * 1e9),
        compute_share=coserving.compute_share,
        regret_share=coserving.regret_share,
        borrow=policy.borrow,
        guards=policy.guards,
    )


#: How often to look at the page, record slices, and record step time errors.
WATCH_S = 0.05
SLICE_NS = 1_000_000_000
STEP_TIME_NS = 60_000_000_000
WORKED_SHARE_MIN = 0.02  # a held engine that worked less of the last second makes no progress
HELD_NS_MAX = 250_000_000


class DeviceAgent:
    """The agent of one device. With `before`, it continues the accounts of the device's former agents."""

    def __init__(
        self,
        spec: AgentSpec,
        record: Record,
        ledger_failure: Callable[[], str | None] = lambda: None,
        make_engine: Callable[[EngineSpec], EngineProcess] = EngineProcess,
        before: Predecessor | None = None,
        *,
        via: Via,
        last_lease: LastLease = LastLease(),  # noqa: B008
    ) -> None:
        self._spec, self._record, self._hardware_id = spec, record, hardware_id(spec.device)
        self._page = ArbiterPage.create(spec.page)
        self._page.set_terms(spec.budgets, spec.max_prompt_tokens, spec.memory())
        now_ns = monotonic_ns()
        self._began_ns = now_ns if before is None else before.until_ns
        self._rollout_runs = Assignments("" if before is None else recorded_run(spec.staging))
        self._train_runs = Assignments("" if before is None else before.train_run_id)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._history = ServingHistory()
        #: Of the last second: shares of the device, and serving's step times over their times alone.
        self._serving_share = self._worked_share = self._beside_share = 0.0
        self._minute = Minute()
        self._stretch = 1.0
        coserving = spec.coserving
        self._rules = _rules(coserving)
        self._terms: Terms | None = None
        client = ControlClient(spec.gateway_url, spec.agent_token)
        self._control = Control(
            spec.device.id, client, coserving.heartbeat_s, self._report, self._answered, spec.anchor
        )
        self._leasing: Leasing | None = None
        engine_id = None if spec.rollout is None else spec.rollout.engine_id
        if engine_id is not None and spec.device.pool == "serving":
            self._leasing = Leasing(
                device_id=spec.device.id,
                engine_id=engine_id,
                page=self._page,
                anchor=spec.anchor,
                kv_bytes_per_token=lambda: self._rollout_spec.rollout_kv_bytes_per_token,
                id_prefix=spec.run_id,
                coserving=coserving,
                record=record,
                take_back=self._take_back,
                ledger_failure=ledger_failure,
                run=lambda: self._rollout_runs.now,
                ended_before=None if before is None else before.leases,
                last=last_lease,
            )
            drawn_by = rules(coserving)
            self._withholding = Withholding(spec.device.id, engine_id, drawn_by, spec.anchor, self._note, now_ns)
        self._accountant = Accountant(
            spec.device.id,
            self._page,
            spec.anchor,
            self._began_ns,
            self._note,
            engine_id=engine_id,
            leases=[] if self._leasing is None else self._leasing.history,
            rollout_runs=self._rollout_runs,
            train_runs=self._train_runs,
            takes_over=before is not None,
            moved=self._moved,
        )
        self._requests = RequestRecorder(
            spec.device.id,
            spec.serving_engine_id,
            self._page,
            spec.anchor,
            self._note,
            partial(lease_id_of, spec.run_id, spec.device.id),
            spec.budgets,
            began_ns=self._began_ns,
            takes_over=before is not None,
            per_s_max=coserving.recorded_requests_per_s_max,
            window_ns=int(coserving.holdout_window_s * 1e9),
        )
        self._activation_ns = 0  # how long it last took to bring in the rollout engine's memory
        #: The pid of the engine whose memory last came to the device, and the lease for which it came.
        self._activated_for: tuple[int | None, str | None] = (None, None)
        self._serving = ServingWatch(spec, self._page, self._note)
        self._step_times = StepTimeWatch(spec, self._page, self._note)
        self._meter = DeviceMeter(spec.device, self._note, spec.anchor, coserving.meter_s)
        self._engine: RolloutEngine | None = None
        if spec.rollout is not None:
            self._engine = RolloutEngine(
                spec,
                self._page,
                self._accountant,
                self._note,
                assigned=self._rollout_runs,
                changed=self._act,
                via=via,
                make=make_engine,
            )
        self._weights = WeightKeeper(
            spec.device.id,
            lambda: None if self._engine is None else self._engine.sync,
            coserving.drift_audit_s,
            coming=lambda run_id: self._rollout_runs.change(monotonic_ns(), run_id),
            take_out=self._take_out,
            record=self._record_sync,
        )
        self._watch_thread = threading.Thread(target=self._watch, name=f"agent-{spec.device.id}", daemon=True)

    def start(self) -> None:
        record_device(self._record, self._spec, "joined", self._began_ns, self._hardware_id)
        private_files.make(self._spec.staging)
        self._watch_thread.start()
        self._meter.start()
        if self._engine is not None:
            self._engine.start()
            self._weights.start()
        self._control.start()

    def stop(self, *, leave: bool = False) -> None:
        """End the lease. Unless `leave` is True, end the engine and record that the device left. Safe to call twice."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._lock:
            if self._leasing is not None:
                self._leasing.end("the agent stops")
        self._control.stop()
        self._weights.stop()
        if self._watch_thread.is_alive():
            self._watch_thread.join()
        if self._engine is not None:
            pid = None if self._engine.engine is None else self._engine.engine.pid
            if self._engine.stop(leave=leave) and not leave:
                self._note(rollout_event(self._rollout_spec, "stopped", pid))
        self._weights.join()
        self._meter.stop()
        self._serving.close("the agent stopped")
        self._step_times.tell()
        self._tell_withheld()
        left_ns = monotonic_ns()
        self._requests.tell(left_ns)
        self._accountant.close(left_ns, final=True)
        # By how much slices can be off: late spans, and spans that a full ring lost.
        spans = {"late_ns": self._accountant.late_ns, "lost_spans": self._accountant.lost_spans}
        self._note(LedgerAction(device_id=self._spec.device.id, action="slices_closed", detail_json=json.dumps(spans)))
        if not leave:
            record_device(self._note, self._spec, "left", left_ns, self._hardware_id)
        self._page.close()

    def check(self) -> str | None:
        """Return why rollouts cannot use this device although they want it, or None. Raises EngineError on failure."""
        device_id = self._spec.device.id
        kept = None if self._engine is None else self._engine.failure
        failure = self._failure or self._control.failure or self._weights.failure or kept
        if failure is not None:
            raise EngineError(f"agent of device {device_id}: {failure}")
        reason = self._not_lent()
        return None if reason is None else f"{device_id}: {reason.text}"

    def _not_lent(self) -> Reason | None:
        leasing = self._leasing
        if leasing is None:
            return None if (fault := self._engine_fault) is None else Reason("engine_away", fault)
        if leasing.failure is not None:
            return Reason("ledger_away", leasing.failure)
        with self._lock:
            facts = self._facts(leasing.state)
        return refusal(facts, monotonic_ns()) if facts.wanted_ns > 0 and not facts.state.in_force else None

    def _facts(self, state: LeaseState) -> LeaseFacts:
        assert self._leasing is not None
        assert self._spec.rollout is not None
        answered_ns, answer = self._control.answered_ns, self._control.answer
        wanted_ns = 0 if answer.drained else answer.wanted_ns.get(self._spec.rollout.engine_id, 0)
        fault = self._serving.fault
        load = None if fault is not None else self._page.serving_load()
        self._history = self._history.observe(load, monotonic_ns())
        return LeaseFacts(
            rules=self._rules,
            state=state,
            answered_ns=answered_ns,
            wanted_ns=wanted_ns,
            lease_named=self._leasing.lease_id in answer.renew,
            step=answer.step,
            engine_fault=self._failure or self._engine_fault,
            engine_memory=self._engine_memory(),
            serving_fault=fault,
            load=load,
            history=self._history,
            memory=self._page.memory() or self._rollout_spec.memory(),
            idle_share=max(
                1.0 - self._serving_share, share_of_busy(self._spec.coserving.stretch, self._spec.coserving.slack_share)
            ),
            # Weights come before a lease, beside serving: they are no cost of the lease.
            switch_ns=self._activation_ns,
            serving_ns=self._minute.serving_ns,
            observed_ns=self._minute.observed_ns,
            cut=self._leasing.engine_cut(),
            withheld=self._withholding.look(monotonic_ns(), wanted=wanted_ns > 0),
            drained=answer.drained,
        )

    @property
    def _rollout_spec(self) -> AgentSpec:
        return self._spec if self._engine is None else self._engine.spec

    @property
    def _engine_fault(self) -> str | None:
        return None if self._engine is None else self._engine.fault

    def _report(self) -> dict[str, Any]:
        host, facts = self._spec.host, self._spec.host_facts
        reason = self._not_lent()
        return {
            "engines": self._engine_reports(),
            "fault": None if reason is None else reason.text,
            "fault_name": None if reason is None else reason.name,
            "serving_ns": self._minute.serving_ns,
            "observed_ns": self._minute.observed_ns,
            "host": host,
            "host_facts": None if facts is None else facts(),
        }

    def _engine_reports(self) -> list[EngineReport]:
        leasing, engine = self._leasing, None if self._engine is None else self._engine.engine
        if self._engine is None or engine is None:
            return []
        state = None if leasing is None or not leasing.state.in_force else leasing.state
        (run_id, version), fault = self._engine.held or ("", 0), self._engine.fault
        report = EngineReport(
            engine_id=engine.spec.engine_id,
            device_id=self._spec.device.id,
            url=engine.spec.outer_url,
            token=None if engine.spec.door is None else engine.spec.door.token,
            borrowed=leasing is not None,
            alive=engine.alive and fault is None,
            capacity=engine.spec.capacity,
            policy_version=version,
            lease_id=None if leasing is None else leasing.lease_id,
            lease_left_ns=None if state is None else max(0, state.expires_ns - monotonic_ns()),
            slack_ok=leasing is None or (self._engine_memory() == "present" and self._has_slack()),
            run_id=run_id or None,
            failed=self._weights.failed,
            fault=fault,
            beside=self._beside_report(),
            model=self._engine.model,
            unstarted=self._engine.unstarted,
            start_ns=self._engine.start_ns,
            token_ids_only=engine.spec.token_ids_only,
        )
        return [report]

    def _beside_report(self) -> BesideReport | None:
        lease = self._page.lease()
        if not lease.gives_credit:
            return None
        limit = Hold(self._page.get(Party.SERVING, Field.CREDIT_LIMIT)).name.lower()
        held_by = limit if self._page.serving_wants() and not self._page.credit_ns(monotonic_ns()) > 0 else None
        return BesideReport(share=self._beside_share, stretch=self._stretch, stretch_max=lease.stretch, held_by=held_by)

    def _engine_memory(self) -> Literal["present", "moving", "away"]:
        opened = self._page.open(Party.ROLLOUT, monotonic_ns())
        if opened is not None and opened.kind is Span.ACTIVATION:
            return "moving"
        return "away" if self._page.get(Party.ROLLOUT, Field.AWAY_SINCE_NS) else "present"

    def _has_slack(self) -> bool:
        now_ns = monotonic_ns()
        held = self._page.open(Party.ROLLOUT, now_ns)
        if held is None or held.kind is not Span.HELD or self._worked_share >= WORKED_SHARE_MIN:
            return True
        return self._page.get(Party.ROLLOUT, Field.LAST_HOLD) == Hold.SERVING_STEP and (
            now_ns - held.start_ns < HELD_NS_MAX
        )

    def _answered(self) -> None:
        answer = self._control.answer
        if answer.terms is not None and answer.terms != self._terms:
            self._take_over(answer.terms)
        self._train_runs.change(monotonic_ns(), answer.train_run_id or "")
        if self._engine is not None and self._spec.rollout is not None:
            self._engine.assign(answer.rollout_run_ids, answer.models)
            target = None
            if (wanted := answer.targets.get(self._spec.rollout.engine_id)) is not None:
                origin_rules = OriginRules(client=wanted.client_address)
                target = Target(
                    wanted.run_id, wanted.version, wanted.url, wanted.token, wanted.signer, rules=origin_rules
                )
            self._weights.aim(target)
        self._act()

    def _take_over(self, terms: Terms) -> None:
        with self._lock:
            self._terms, self._spec = terms, self._spec.with_terms(terms)
            coserving = self._spec.coserving
            self._rules = _rules(coserving)
            self._history = ServingHistory()  # Former requests were late by the former budgets.
            if self._leasing is not None:
                self._leasing.coserving = coserving
        self._control.hold(coserving.heartbeat_s)
        if self._engine is not None:
            self._engine.take_over(terms)
        else:
            self._page.set_terms(self._spec.budgets, self._spec.max_prompt_tokens, self._spec.memory())

    def _act(self) -> None:
        if self._leasing is None:
            return
        with self._lock:
            if not self._stopping.is_set():
                self._leasing.act(self._facts)

    def _watch(self) -> None:
        sliced_ns = told_ns = monotonic_ns()
        try:
            while not self._stopping.wait(WATCH_S):
                self._serving.look()
                self._act()
                now_ns = monotonic_ns()
                if now_ns - sliced_ns >= SLICE_NS:
                    sliced_ns = now_ns
                    if self._page.replaced():
                        self._failure = f"its page {self._page.path} was removed or replaced"
                        return
                    self._close_slices(now_ns)
                    self._page.set(Party.AGENT, Field.OTHERS, self._meter.others)
                    self._tell_withheld()
                if now_ns - told_ns >= STEP_TIME_NS:
                    told_ns = now_ns
                    self._step_times.tell()
        except Exception as error:
            self._failure = f"watching the page failed: {type(error).__name__}: {error}"
            raise

    def _close_slices(self, now_ns: int) -> None:
        self._requests.tell(now_ns - LAG_NS)
        slices = self._accountant.close(now_ns)
        total_ns = sum(part.t1_ns - part.t0_ns for part in slices)
        if total_ns:
            serving_ns = sum(part.serving_ns for part in slices)
            beside_ns = sum(part.beside_work_ns or 0 for part in slices)
            delayed_ns = sum(part.delayed_ns or 0 for part in slices)
            self._serving_share = serving_ns / total_ns
            self._minute.add(serving_ns, total_ns)
            self._worked_share = sum(part.rollout_ns for part in slices) / total_ns
            self._beside_share = beside_ns / total_ns
            self._stretch = 1 + delayed_ns / max(1, delayed_ns // 2, serving_ns + beside_ns - delayed_ns)

    def _tell_withheld(self) -> None:
        if self._leasing is not None:
            with self._lock:
                self._withholding.tell()

    def _moved(self, span: SpanRecord, lease_id: str | None) -> None:
        engine = None if self._engine is None else self._engine.engine
        pid, move = None if engine is None else engine.pid, Move.from_aux(span.aux)
        if move.away:
            # Memory of the engine's start belongs to no lease.
            lease_id = self._activated_for[1] if self._activated_for[0] == pid else None
            self._activated_for = (None, None)
        else:
            self._activated_for = (pid, None if move.weights_alone else lease_id)
        event = moved_event(self._rollout_spec, span, lease_id, pid)
        if event.action == "activated" and event.lease_id is not None:
            self._activation_ns = span.end_ns - span.start_ns
        self._note(event, durable=False)  # Not durable: the lease is in the ledger already.

    def _take_back(self, reason: str) -> int:
        assert self._spec.rollout is not None
        return self._control.take_back(self._spec.rollout.engine_id, reason)

    def _take_out(self, reason: str) -> None:
        self._act()
        self._control.beat()
        self._take_back(reason)

    def _record_sync(self, event: Event, *, durable: bool | None = None) -> None:
        """Record a sync's event, with the time that the device's clock shows now. Lease events use the same clock. So
        the ledger can find the first lease after the sync, and charge that lease for the sync."""
        self._note(dataclasses.replace(event, at_us=self._spec.anchor.now_us()), durable=durable)

    def _note(self, event: Event, *, durable: bool | None = None) -> None:
        with suppress(LedgerError):
            self._record(event, durable=durable)
