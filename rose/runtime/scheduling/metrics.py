"""Exports the metrics of the controller to Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from rose.clock import monotonic_ns, utc_us
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.status import hosts, missing, run_status

_COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {  # By name without `rose_`: labels and help text.
    "turns": (("run", "outcome"), "Turns that ended."),
    "output_tokens": (("run",), "Tokens of completed turns."),
    "attempts": (("run", "outcome"), "Attempts at turns."),
    "host_events_dropped": (("host",), "Events that the host's writer merged or only counted."),
}
_GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "turns_open": (("run",), "Turns queued or in flight."),
    "run_version": (("run",), "Newest published version of a run."),
    "run_engines": (("run",), "Engines assigned to a run."),
    "engine_alive": (("device", "engine"), "Whether a rollout engine takes turns."),
    "engine_leased": (("device", "engine"), "Whether a rollout engine has a lease."),
    "engine_policy_version": (("device", "engine"), "Policy version of an engine."),
    "engine_turns": (("device", "engine"), "Turns on an engine."),
    "device_heard_seconds": (("device",), "Seconds since the last report of the device's agent."),
    "device_drained": (("device",), "Whether a device is drained."),
    "device_clock_offset_seconds": (("device",), "Seconds that a host's clock is ahead of the controller's."),
    "host_segments_waiting": (("host",), "Segments of a host's events that the ledger lacks."),
    "host_waiting_seconds": (("host",), "Age of a host's oldest waiting segment."),
    "controller_ready": ((), "Whether the controller is ready."),
}


def exposition(controller: Controller) -> tuple[bytes, str]:
    registry = CollectorRegistry()
    registry.register(_Figures(controller))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Figures(Collector):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: kind(f"rose_{name}", text, labels=labels)
            for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES))
            for name, (labels, text) in table.items()
        }
        for name, labels, value in _samples(self._controller, monotonic_ns()):
            if value is not None:
                families[name].add_metric(labels, value)
        yield from families.values()


def _samples(controller: Controller, now_ns: int) -> Iterator[tuple[str, list[str], float | None]]:
    for run_id, load in controller.loads.items():
        run = controller.runs.get(run_id)
        if run.is_open or utc_us() - (run.facts.closed_us or 0) <= 3600 * 1_000_000:  # Prometheus still reads it.
            yield "turns_open", [run_id], len(load.turns)
            yield "turns", [run_id, "completed"], load.completed
            yield "turns", [run_id, "failed"], load.failed
            yield "output_tokens", [run_id], load.tokens
            for outcome, count in load.attempts.items():
                yield "attempts", [run_id, outcome], count
    for run in controller.runs:
        if run.is_open:
            run_facts = run_status(controller, run)
            yield "run_version", [run.run_id], run_facts["version"]
            yield "run_engines", [run.run_id], len(run_facts["engines"])
    for worker in controller.workers.values():
        names, facts = [worker.report.device_id, worker.report.engine_id], worker.facts
        yield "engine_alive", names, facts.alive(now_ns)
        yield "engine_leased", names, worker.report.lease_id is not None
        yield "engine_policy_version", names, worker.held_version
        yield "engine_turns", names, facts.in_flight
    for device in controller.devices.values():
        offset_ns = device.clock_offset_ns
        yield "device_heard_seconds", [device.device_id], (now_ns - device.heard_ns) / 1e9
        yield "device_drained", [device.device_id], device.device_id in controller.drained
        yield "device_clock_offset_seconds", [device.device_id], None if offset_ns is None else offset_ns / 1e9
    for host in hosts(controller):
        yield "host_events_dropped", [host["host"]], host["events_dropped"]
        yield "host_segments_waiting", [host["host"]], host["segments_waiting"]
        yield "host_waiting_seconds", [host["host"]], host["waiting_s"]
    yield "controller_ready", [], not missing(controller, now_ns)
