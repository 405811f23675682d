"""The controller's figures in Prometheus' text format, gathered when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from rose.clock import monotonic_ns, utc_us
from rose.runtime.scheduling.runs.registry import Run
from rose.runtime.scheduling.status import hosts, missing, run_status

if TYPE_CHECKING:
    from rose.runtime.scheduling.controller import Controller

#: A run that ended has its figures for so long, so that the last of them are read; then no more.
_ENDED_SHOWN_US = 3600 * 1_000_000


def exposition(controller: Controller) -> tuple[bytes, str]:
    """(text, content type)."""
    registry = CollectorRegistry()
    registry.register(_Figures(controller))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Figures(Collector):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        yield from self._turns()
        yield from self._runs()
        yield from self._engines()
        yield from self._devices()
        yield from self._hosts()
        ready = GaugeMetricFamily("rose_controller_ready", "Whether nothing is missing.")
        ready.add_metric([], not missing(self._controller, monotonic_ns()))
        yield ready

    def _turns(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("rose_turns_open", "Turns that are queued or in flight.", labels=["run"])
        turns = CounterMetricFamily("rose_turns", "Turns that ended.", labels=["run", "outcome"])
        tokens = CounterMetricFamily("rose_output_tokens", "Tokens of completed turns.", labels=["run"])
        attempts = CounterMetricFamily("rose_attempts", "Attempts at turns.", labels=["run", "outcome"])
        for run_id, load in self._controller.loads.items():
            if _ended_long_ago(self._controller.runs.get(run_id)):
                continue
            waiting.add_metric([run_id], len(load.turns))
            turns.add_metric([run_id, "completed"], load.completed)
            turns.add_metric([run_id, "failed"], load.failed)
            tokens.add_metric([run_id], load.tokens)
            for outcome, count in load.attempts.items():
                attempts.add_metric([run_id, outcome], count)
        yield from (waiting, turns, tokens, attempts)

    def _runs(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("rose_run_version", "The newest version that a run published.", labels=["run"])
        engines = GaugeMetricFamily("rose_run_engines", "Engines that are assigned to a run.", labels=["run"])
        for run in self._controller.runs:
            if run.is_open:
                shown = run_status(self._controller, run)
                if shown["version"] is not None:
                    version.add_metric([run.run_id], shown["version"])
                engines.add_metric([run.run_id], len(shown["engines"]))
        yield from (version, engines)

    def _engines(self) -> Iterator[Metric]:
        labels = ["device", "engine"]
        alive = GaugeMetricFamily("rose_engine_alive", "Whether a rollout engine takes turns.", labels=labels)
        leased = GaugeMetricFamily("rose_engine_leased", "Whether it has a lease.", labels=labels)
        held = GaugeMetricFamily("rose_engine_policy_version", "The version that it holds.", labels=labels)
        running = GaugeMetricFamily("rose_engine_turns", "Turns that it runs.", labels=labels)
        now_ns = monotonic_ns()
        for worker in self._controller.workers:
            names, facts = [worker.report.device_id, worker.report.engine_id], worker.facts
            alive.add_metric(names, facts.alive(now_ns))
            leased.add_metric(names, worker.report.lease_id is not None)
            if worker.held_version is not None:
                held.add_metric(names, worker.held_version)
            running.add_metric(names, facts.in_flight)
        yield from (alive, leased, held, running)

    def _devices(self) -> Iterator[Metric]:
        silent = GaugeMetricFamily(
            "rose_device_heard_seconds", "Seconds since its agent was heard of.", labels=["device"]
        )
        drained = GaugeMetricFamily("rose_device_drained", "Whether it is drained.", labels=["device"])
        offset = GaugeMetricFamily(
            "rose_device_clock_offset_seconds", "Seconds that its host's clock is ahead of ours.", labels=["device"]
        )
        now_ns = monotonic_ns()
        for device in self._controller.devices:
            name = [device.device_id]
            silent.add_metric(name, (now_ns - device.heard_ns) / 1e9)
            drained.add_metric(name, device.device_id in self._controller.drained)
            if device.clock_offset_ns is not None:
                offset.add_metric(name, device.clock_offset_ns / 1e9)
        yield from (silent, drained, offset)

    def _hosts(self) -> Iterator[Metric]:
        labels = ["host"]
        dropped = CounterMetricFamily(
            "rose_host_events_dropped", "Events that its agents' process merged, or only counted.", labels=labels
        )
        gauges = {
            "uptime_s": ("rose_host_uptime_seconds", "Seconds since its agents' process began."),
            "resident_bytes": (
                "rose_host_resident_memory_bytes",
                "Bytes of memory that its agents' process has resident.",
            ),
            "segments_waiting": ("rose_host_segments_waiting", "Segments of its events that the ledger lacks."),
            "waiting_s": ("rose_host_waiting_seconds", "Seconds that the oldest of them has been on its disk."),
        }
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {"events_dropped": dropped}
        families |= {field: GaugeMetricFamily(name, text, labels=labels) for field, (name, text) in gauges.items()}
        for host in hosts(self._controller):
            for field, family in families.items():
                if host[field] is not None:
                    family.add_metric([host["host"]], host[field])
        yield from families.values()


def _ended_long_ago(run: Run) -> bool:
    return not run.is_open and utc_us() - (run.facts.closed_us or 0) > _ENDED_SHOWN_US
