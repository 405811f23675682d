"""Describes the state of the fleet for people and programs."""

from typing import Any

from rose.clock import monotonic_ns
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.devices import Device
from rose.runtime.scheduling.engines.assignment import Load
from rose.runtime.scheduling.messages import HostFacts
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.workers import SILENCE_MAX_NS, Worker

_RUN_FACTS = (
    *("run_id", "name", "team", "tags", "task", "model", "state", "outcome", "reason", "version", "step", "fence"),
    *("staleness_max", "weight", "priority", "trainer_device", "opened_us", "closed_us"),
)
_REPORT_FACTS = {
    *("engine_id", "borrowed", "model", "token_ids_only", "run_id", "capacity"),
    *("fault", "failed", "lease_id", "slack_ok", "beside"),
}
WAITING_MAX_S = 300.0  # Longest wait of a host's events without a warning.


def status(controller: Controller, now_ns: int) -> dict[str, Any]:
    return {
        "fleet_run_id": controller.fleet_run_id,
        "model": next(iter(controller.models), None),
        "models": list(controller.models),
        "policy": controller.policy,
        "missing": missing(controller, now_ns),
        "warnings": warnings(controller),
        "ray": controller.ray_fault(),
        "hosts": hosts(controller),
        "devices": [_device(controller, device, now_ns) for device in controller.devices.values()],
        "runs": [run_status(controller, run) for run in controller.runs if run.facts.state != "closed"],
    }


def run_status(controller: Controller, run: Run) -> dict[str, Any]:
    in_flight = sum(item.run_id == run.run_id for _, item in controller.workers.running())
    load = controller.loads.get(run.run_id) or Load()
    first = controller.queue.first(run.run_id)
    return {name: getattr(run.facts, name) for name in _RUN_FACTS} | {
        "turns_queued": max(0, len(load.turns) - in_flight),
        "turns_in_flight": in_flight,
        "waits": None if first is None else controller.obstacles.why_waiting(first),
        "turns_completed": load.completed,
        "tokens": load.tokens,
        "engines": [worker.report.engine_id for worker in controller.workers.values() if worker.assigned == run.run_id],
        "expires_in_s": _seconds(run.left_ns(monotonic_ns())) if run.is_open else None,
    }


def missing(controller: Controller, now_ns: int) -> list[str]:
    silent = [device for device in controller.devices.values() if now_ns - device.due_ns > SILENCE_MAX_NS]
    names = controller.devices.keys()
    missing_names = (name for name in controller.devices.expected if name not in names)
    lacking = [f"device {name}: its agent has not reported" for name in missing_names]
    if not names and not lacking:
        lacking.append("no agent has reported")
    lacking += [
        f"device {device.device_id}: no report from its agent for {(now_ns - device.heard_ns) / 1e9:.0f} s"
        for device in silent
    ]
    heard = [worker for worker in controller.workers.values() if worker.overdue_ns(now_ns) <= SILENCE_MAX_NS]
    if heard and not any(worker.facts.alive(now_ns) for worker in heard):
        lacking.append("no rollout engine is alive")
    failures = (controller.state.check(), controller.answers.failure, controller.recorder.failure)
    # The recorder repeats the state's failure.
    lacking += dict.fromkeys(failure for failure in failures if failure is not None)
    return lacking


def hosts(controller: Controller) -> list[dict[str, Any]]:
    """Return the newest facts of each host. `waits` is the reason why events of the host are late, or None."""
    devices = sorted(controller.devices.values(), key=lambda device: device.heard_ns)
    newest = {device.host or device.device_id: device.host_facts for device in devices if device.host_facts is not None}
    facts_by_host = sorted(newest.items())
    return [{"host": name, **facts.model_dump(), "waits": _late_events(facts)} for name, facts in facts_by_host]


def warnings(controller: Controller) -> list[str]:
    late = [host for host in hosts(controller) if (host["waiting_s"] or 0) > WAITING_MAX_S]
    ray = controller.ray_fault()
    return [f"host {host['host']}: {host['waits']}" for host in late] + ([] if ray is None else [ray])


def _late_events(facts: HostFacts) -> str | None:
    waiting_s = facts.waiting_s or 0
    if facts.problem is None and waiting_s <= WAITING_MAX_S:
        return None
    what = "events" if facts.segments_waiting is None else f"{facts.segments_waiting:,} segments of events"
    long = f", the oldest for {waiting_s / 60:,.0f} min" if waiting_s > WAITING_MAX_S else ""
    return f"{what} wait on the host{long}: {facts.problem or 'sending is too slow'}"


def _device(controller: Controller, device: Device, now_ns: int) -> dict[str, Any]:
    workers = [controller.workers[engine_id] for engine_id in device.engine_ids if engine_id in controller.workers]
    return {
        "device_id": device.device_id,
        "host": device.host,
        "heard_s_ago": _seconds(now_ns - device.heard_ns),
        "drained": device.device_id in controller.drained,
        "drain_reason": controller.drained.get(device.device_id),
        "fault": None if device.fault is None else device.fault.text,
        "not_lent": None if (reason := controller.obstacles.not_lent(device, now_ns)) is None else reason.text,
        "reason": None if reason is None else reason.name,
        "clock_offset_ns": device.clock_offset_ns,
        "clock_steps": device.clock_steps,
        "engines": [_engine(controller, worker, now_ns) for worker in workers],
    }


def _engine(controller: Controller, worker: Worker, now_ns: int) -> dict[str, Any]:
    target = controller.assignment.target(worker)
    return worker.report.model_dump(include=_REPORT_FACTS) | {
        "alive": worker.facts.alive(now_ns),
        "policy_version": worker.held_version,
        "assigned_run_id": worker.assigned,
        "target_version": None if target is None else target.version,
        "in_flight": worker.facts.in_flight,
        "lease_left_s": _seconds(worker.facts.lease_left_ns(now_ns)),
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 3)
