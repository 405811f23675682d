"""The ledger's figures in Prometheus' text format: counters are sums over the whole ledger, by provenance.

They come from the daily sums, from the records of the jobs and from the files themselves, so that a scrape costs about
the same on a ledger of any size; and a scraper that comes more often than every `CACHE_S` seconds gets the same answer.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import sql
from rose.clock import utc_us
from rose.ledger import catalog, layout
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import jobs, vitals

CACHE_S = 5.0
#: A lease that nobody renewed for this long is no longer in force, whatever its last event says.
_LEASE_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class _Figure:
    """A metric that is a column of a named query; `labels` are other columns and what they are called as labels."""

    name: str
    help: str
    query: str
    value: str
    labels: tuple[tuple[str, str], ...]
    counter: bool = True

    def family(self, rows: Iterable[dict[str, object]]) -> Metric:
        kind = CounterMetricFamily if self.counter else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = kind(
            self.name, self.help, labels=[label for _, label in self.labels]
        )
        for row in rows:
            if (value := row[self.value]) is not None:
                # A count of device time that belongs to no device has an empty label, as in Prometheus.
                family.add_metric([str(row[column] or "") for column, _ in self.labels], float(str(value)))
        return family


_DEVICE = (("provenance", "provenance"), ("device_id", "device"))
_LENT = (*_DEVICE, ("lent", "lent"))
_ACTION = (*_DEVICE, ("action", "action"))
_CAUSE = (*_DEVICE, ("action", "cause"))
_ROUTE = (*_DEVICE, ("route", "route"))

_FIGURES = (
    _Figure(
        "rose_device_seconds",
        "Device time by bucket; the buckets sum to the time the device reported.",
        "device_time",
        "seconds",
        (*_DEVICE, ("bucket", "bucket")),
    ),
    _Figure("rose_requests", "Serving requests.", "requests", "requests", _LENT),
    _Figure("rose_ttft_misses", "Requests whose first token was late.", "requests", "ttft_misses", _LENT),
    _Figure("rose_tpot_misses", "Requests whose further tokens were late.", "requests", "tpot_misses", _LENT),
    _Figure("rose_slo_misses", "Requests that missed either promise.", "requests", "slo_misses", _LENT),
    _Figure("rose_preemptions", "Times serving took back.", "preemptions", "preemptions", _ACTION),
    _Figure("rose_leases_granted", "Leases granted.", "leases", "granted", _DEVICE),
    _Figure("rose_leases_closed", "Leases closed, by how.", "leases", "closed", _CAUSE),
    _Figure("rose_leases_open", "Leases in force.", "open_leases", "open", _DEVICE, counter=False),
    _Figure("rose_syncs", "Syncs of an engine to a policy version.", "syncs", "syncs", _ROUTE),
    _Figure("rose_sync_failures", "Syncs that did not reach their version.", "syncs", "failures", _ROUTE),
    _Figure("rose_sync_wire_bytes", "Bytes moved by syncs.", "syncs", "wire_bytes", _ROUTE),
    _Figure("rose_sync_dense_bytes", "Bytes of the same weights sent whole.", "syncs", "dense_bytes", _ROUTE),
    _Figure(
        "rose_ledger_dropped_events",
        "Events that were merged or only counted because a writer's queue was full.",
        "dropped",
        "dropped",
        (("provenance", "provenance"), ("writer", "writer")),
    ),
)


class LedgerCollector(Collector):
    """The figures of one ledger, read at most every `cache_s` seconds. Safe to share between threads."""

    def __init__(self, root: Path | str, cache_s: float = CACHE_S) -> None:
        """Raises LedgerError if `root` is no ledger."""
        self._root = layout.check(root)
        self._cache_s = cache_s
        self._mutex = threading.Lock()
        self._read_at_s = -cache_s
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """All metrics. Raises LedgerError if the ledger cannot be read: no figure is better than a wrong one."""
        # Held while reading, so that scrapers that come at once cause one reading.
        with self._mutex:
            if not self._families or time.monotonic() - self._read_at_s >= self._cache_s:
                try:
                    self._families = [*_of_files(self._root), *_of_jobs(self._root), *_of_views(self._root)]
                except (duckdb.Error, OSError) as error:
                    raise LedgerError(f"cannot read the figures of {self._root}: {error}") from error
                self._read_at_s = time.monotonic()
            return self._families


def registry(root: Path | str) -> CollectorRegistry:
    """A registry of the figures of the ledger at `root` and nothing else. Raises LedgerError."""
    # Not described ahead: that would read the whole ledger once more.
    collectors = CollectorRegistry(auto_describe=False)
    collectors.register(LedgerCollector(root))
    return collectors


def text(root: Path | str) -> str:
    """The figures of the ledger at `root` in Prometheus' text format. Raises LedgerError."""
    return str(generate_latest(registry(root)).decode())


def _of_files(root: Path) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "rose_ledger_newest_event_age_seconds", "Time since a writer's newest event.", labels=["writer"]
    )
    events = CounterMetricFamily("rose_ledger_events", "Events that a writer recorded.", labels=["writer"])
    now_us = utc_us()
    for state in vitals.writer_states(root):
        events.add_metric([state.writer], state.events)
        if state.newest_us is not None:
            age.add_metric([state.writer], (now_us - state.newest_us) / 1e6)
    size = GaugeMetricFamily("rose_ledger_bytes", "Bytes of the ledger on disk.", labels=["folder"])
    for folder, taken in vitals.folder_bytes(root).items():
        size.add_metric([folder], taken)
    free = GaugeMetricFamily("rose_ledger_free_disk_bytes", "Bytes free on the disk that the ledger lies on.")
    free.add_metric([], shutil.disk_usage(root).free)
    yield from (age, events, size, free)


def _of_jobs(root: Path) -> Iterator[Metric]:
    ok = GaugeMetricFamily("rose_job_ok", "Whether a job's last run did what it is for.", labels=["job"])
    age = GaugeMetricFamily(
        "rose_job_last_success_age_seconds", "Time since a job last did what it is for.", labels=["job"]
    )
    took = GaugeMetricFamily("rose_job_last_duration_seconds", "How long a job's last run took.", labels=["job"])
    sound = GaugeMetricFamily("rose_ledger_audit_ok", "Whether the last audit found the ledger sound.")
    now_us = utc_us()
    for last in jobs.history(root).values():
        ok.add_metric([last.job], last.ok)
        took.add_metric([last.job], last.duration_ns / 1e9)
        if last.success_ended_us is not None:
            age.add_metric([last.job], (now_us - last.success_ended_us) / 1e6)
        if last.job == "audit":
            sound.add_metric([], last.ok)
    yield from (ok, age, took, sound)


def _of_views(root: Path) -> Iterator[Metric]:
    rows: dict[str, list[dict[str, object]]] = {}
    with catalog.connect(root) as connection:
        connection.execute(f"SET VARIABLE since_us = {utc_us() - _LEASE_US}")
        for query in dict.fromkeys(figure.query for figure in _FIGURES):
            cursor = connection.execute(sql.read(f"metrics/{query}.sql"))
            columns = [column[0] for column in cursor.description or []]
            rows[query] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    for figure in _FIGURES:
        yield figure.family(rows[figure.query])
