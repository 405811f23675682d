"""A ledger's figures for Prometheus, from daily sums, job records and files. A large ledger takes no longer to read."""

import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

import sql
from rose.clock import utc_us
from rose.ledger.files import layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import jobs

CACHE_S = 5.0


class _Figure(NamedTuple):
    """A metric: column `value` of a query in `sql/metrics`. `labels` lists label columns, as NAME or COLUMN=LABEL."""

    name: str
    help: str
    query: str
    value: str
    labels: str

    def family(self, rows: Iterable[dict[str, object]]) -> Metric:
        labels = {label.partition("=")[0]: label.rpartition("=")[2] for label in self.labels.split()}
        kind = GaugeMetricFamily if self.value == "open" else CounterMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = kind(self.name, self.help, labels=[*labels.values()])
        for row in rows:
            if (value := row[self.value]) is not None:
                # Device time that belongs to no device has an empty label, as in Prometheus.
                family.add_metric([str(row[column] or "") for column in labels], float(str(value)))
        return family


_DEVICE = "provenance device_id=device"
_FIGURES = (
    _Figure("rose_device_seconds", "Device time by bucket.", "device_time", "seconds", f"{_DEVICE} bucket"),
    _Figure("rose_requests", "Serving requests.", "requests", "requests", f"{_DEVICE} lent"),
    _Figure("rose_ttft_misses", "Requests whose first token was late.", "requests", "ttft_misses", f"{_DEVICE} lent"),
    _Figure("rose_tpot_misses", "Requests whose later tokens were late.", "requests", "tpot_misses", f"{_DEVICE} lent"),
    _Figure("rose_slo_misses", "Requests with a late token.", "requests", "slo_misses", f"{_DEVICE} lent"),
    _Figure("rose_preemptions", "Preemptions by serving.", "preemptions", "preemptions", f"{_DEVICE} action"),
    _Figure("rose_leases_granted", "Leases granted.", "leases", "granted", _DEVICE),
    _Figure("rose_leases_closed", "Leases closed, by cause.", "leases", "closed", f"{_DEVICE} action=cause"),
    _Figure("rose_leases_open", "Leases in force.", "open_leases", "open", _DEVICE),
    _Figure("rose_syncs", "Syncs of an engine to a policy version.", "syncs", "syncs", f"{_DEVICE} route"),
    _Figure("rose_sync_failures", "Syncs that failed.", "syncs", "failures", f"{_DEVICE} route"),
    _Figure("rose_sync_wire_bytes", "Bytes moved by syncs.", "syncs", "wire_bytes", f"{_DEVICE} route"),
    _Figure("rose_sync_dense_bytes", "Bytes of the same weights in full.", "syncs", "dense_bytes", f"{_DEVICE} route"),
    _Figure("rose_ledger_dropped_events", "Events merged or only counted.", "dropped", "dropped", "provenance writer"),
)


class LedgerCollector(Collector):
    """The figures of one ledger, read at most once every CACHE_S seconds. Thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._mutex = threading.Lock()
        self._read_at_s = -CACHE_S
        self._families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        # Locked while reading, so that simultaneous scrapes read once.
        with self._mutex:
            if not self._families or time.monotonic() - self._read_at_s >= CACHE_S:
                try:
                    self._families = [*_of_files(self._ledger), *_of_jobs(self._ledger), *_of_views(self._ledger)]
                except (duckdb.Error, OSError) as error:
                    raise LedgerError(f"cannot read the figures of {self._ledger.folder}: {error}") from error
                self._read_at_s = time.monotonic()
            return self._families

    def text(self) -> str:
        return str(generate_latest(self).decode())


def _of_files(ledger: Ledger) -> Iterator[Metric]:
    age = GaugeMetricFamily("rose_ledger_newest_event_age_seconds", "Age of a writer's last event.", labels=["writer"])
    events = CounterMetricFamily("rose_ledger_events", "Events that a writer recorded.", labels=["writer"])
    for writer in layout.writers(ledger.folder):
        count, newest_us = writer_state(ledger, writer)
        events.add_metric([writer], count)
        if newest_us is not None:
            age.add_metric([writer], (utc_us() - newest_us) / 1e6)
    size = GaugeMetricFamily("rose_ledger_bytes", "Bytes of the ledger on disk.", labels=["folder"])
    for folder in sorted(path for path in ledger.folder.iterdir() if path.is_dir()):
        size.add_metric([folder.name], sum(map(_size_bytes, folder.rglob("*"))))
    size.add_metric(["."], sum(map(_size_bytes, ledger.folder.iterdir())))
    free = GaugeMetricFamily("rose_ledger_free_disk_bytes", "Bytes free on the disk that the ledger lies on.")
    free.add_metric([], shutil.disk_usage(ledger.folder).free)
    yield from (age, events, size, free)


def writer_state(ledger: Ledger, writer: str) -> tuple[int, int | None]:
    """Return how many events a writer has, and the newest event's time in UTC microseconds (None: unknown)."""
    try:
        for part in reversed(layout.chain(ledger.folder, writer)):
            if part.state == "archived":
                return segments.end_seq(ledger.folder, part), None
            for path in sorted(ledger.folder.glob(part.pattern), reverse=True):
                groups = pq.read_metadata(path)
                if groups.num_rows:
                    return _most(groups, "seq") + 1, _most(groups, "at_us")
    except FileNotFoundError:
        return writer_state(ledger, writer)
    except pa.ArrowException as error:
        raise LedgerError(f"a file of writer {writer!r} is damaged: {error}. Run `rose ledger verify`") from error
    return 0, None


def _most(groups: pq.FileMetaData, column: str) -> int:
    position = next(n for n in range(groups.num_columns) if groups.schema.column(n).name == column)
    return max(int(groups.row_group(n).column(position).statistics.max) for n in range(groups.num_row_groups))


def _size_bytes(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0


def _of_jobs(ledger: Ledger) -> Iterator[Metric]:
    ok = GaugeMetricFamily("rose_job_ok", "Whether a job's last run succeeded.", labels=["job"])
    age = GaugeMetricFamily("rose_job_last_success_age_seconds", "Time since a job's last success.", labels=["job"])
    took = GaugeMetricFamily("rose_job_last_duration_seconds", "How long a job's last run took.", labels=["job"])
    sound = GaugeMetricFamily("rose_ledger_audit_ok", "Whether the last audit found the ledger sound.")
    for last in jobs.history(ledger).values():
        ok.add_metric([last.job], last.ok)
        took.add_metric([last.job], last.duration_ns / 1e9)
        if last.success_ended_us is not None:
            age.add_metric([last.job], (utc_us() - last.success_ended_us) / 1e6)
        if last.job == "audit":
            sound.add_metric([], last.ok)
    yield from (ok, age, took, sound)


def _of_views(ledger: Ledger) -> Iterator[Metric]:
    rows: dict[str, list[dict[str, object]]] = {}
    with ledger.connect() as connection:
        connection.execute(f"SET VARIABLE now_us = {utc_us()}")
        for query in dict.fromkeys(figure.query for figure in _FIGURES):
            rows[query] = connection.sql(sql.read(f"metrics/{query}.sql")).to_arrow_table().to_pylist()
    yield from (figure.family(rows[figure.query]) for figure in _FIGURES)
