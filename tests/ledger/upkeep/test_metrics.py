import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rose.clock import utc_us
from rose.events import BUCKETS, DeviceSlice, LedgerAction, Preemption, Sync
from rose.ledger.files import segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import metrics
from rose.ledger.upkeep.jobs import Job, ledger_jobs, run_job
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import copied, record

S = 10**9
HOME = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root_made(tmp_path_factory, lease, request_event):
    root, at_us = tmp_path_factory.mktemp("made") / "ledger", utc_us() - 3_600_000_000
    for provenance in ("live", "simulated"):
        write(root, provenance, at_us, lease, request_event)
    return root


@pytest.fixture
def root(root_made, tmp_path):
    return copied(root_made, tmp_path / "ledger")


def write(root, provenance, at_us, lease, request_event):
    with LedgerWriter.open(root, f"w-{provenance}", f"r-{provenance}", provenance) as writer:
        record = partial(writer.record, durable=False)
        for n, closing in enumerate(["released", "preempted", "preempted", None]):
            own = {"lease_id": f"l{n}", "device_id": "d", "expires_at_us": at_us + 7200 * 1_000_000}
            record(lease(at_us=at_us + n, **own))
            record(lease("renewed", at_us=at_us + 10 + n, **own))
            if closing:
                record(lease(closing, lease_id=f"l{n}", device_id="d", at_us=at_us + 20 + n))
        record(lease(lease_id="old", device_id="d", at_us=1))
        record(lease("renewed", lease_id="expired", device_id="d", at_us=at_us, expires_at_us=at_us + 1))
        for n, fields in enumerate([{}, {"ttft_ns": 101}, {"tpot_mean_ns": 11}, {"lease_id": "l", "ttft_ns": 101}]):
            record(request_event(request_id=f"q{n}", device_id="d", at_us=at_us, **fields))
        for action in ("yield", "yield", "revoke"):
            record(Preemption(action=action, reason="burst", device_id="d", at_us=at_us))
        sync = {"encoding": "delta", "wire_bytes": 10, "dense_bytes": 90, "source": "relay", "route": "loopback"}
        for ok in (True, False):
            record(Sync(device_id="d", at_us=at_us, ok=ok, base_version=0, total_ns=S, **sync))
        times = {f"{bucket}_ns": (n + 1) * S for n, bucket in enumerate(BUCKETS)}
        t0_ns = at_us * 1000
        record(DeviceSlice(device_id="d", at_us=at_us, t0_ns=t0_ns, t1_ns=t0_ns + sum(times.values()), **times))
        for count in (3, 4):
            detail = f'{{"count": {count}, "kinds": {{"turn": {count}}}}}'
            record(LedgerAction(action="dropped", detail_json=detail, at_us=at_us))


def samples(text):
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Read:
    def __init__(self, text):
        self.all = samples(text)

    def __call__(self, name, **labels):
        return self.all.get((name, frozenset(labels.items())))


LIVE = {"provenance": "live", "device": "d"}
#: By name and labels beside those of `LIVE`. The lease of 1970 was never closed, and is not in force.
VIEWED = [
    *(("rose_device_seconds_total", {"bucket": bucket}, n + 1) for n, bucket in enumerate(BUCKETS)),
    ("rose_requests_total", {"lent": "false"}, 3),
    ("rose_requests_total", {"lent": "true"}, 1),
    ("rose_slo_misses_total", {"lent": "false"}, 2),
    ("rose_ttft_misses_total", {"lent": "false"}, 1),
    ("rose_tpot_misses_total", {"lent": "false"}, 1),
    ("rose_slo_misses_total", {"lent": "true"}, 1),
    ("rose_preemptions_total", {"action": "yield"}, 2),
    ("rose_preemptions_total", {"action": "revoke"}, 1),
    ("rose_leases_granted_total", {}, 5),
    ("rose_leases_closed_total", {"cause": "preempted"}, 2),
    ("rose_leases_closed_total", {"cause": "released"}, 1),
    ("rose_leases_closed_total", {"cause": "expired"}, None),
    ("rose_leases_open", {}, 1),
    ("rose_syncs_total", {"route": "loopback"}, 2),
    ("rose_sync_failures_total", {"route": "loopback"}, 1),
    ("rose_sync_wire_bytes_total", {"route": "loopback"}, 20),
    ("rose_sync_dense_bytes_total", {"route": "loopback"}, 180),
    ("rose_leases_open", {"provenance": "simulated"}, 1),
]


def check_views(read):
    for name, labels, value in VIEWED:
        assert read(name, **(LIVE | labels)) == value, (name, labels)
    assert read("rose_ledger_dropped_events_total", provenance="live", writer="w-live") == 7


def test_what_the_views_say_by_provenance_also_once_it_is_rolled_up(root, monkeypatch):
    check_views(Read(metrics.LedgerCollector(Ledger(root)).text()))
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 0)
    for provenance in ("live", "simulated"):
        record(root, LedgerAction(action="note"), writer=f"w-{provenance}")
    assert roll_up(Ledger(root)).events == 52
    check_views(Read(metrics.LedgerCollector(Ledger(root)).text()))


def test_what_the_files_say(root):
    read = Read(metrics.LedgerCollector(Ledger(root)).text())
    assert 3590 < read("rose_ledger_newest_event_age_seconds", writer="w-live") < 3700
    with LedgerWriter.open(root, "w-live", "r") as writer:
        assert read("rose_ledger_events_total", writer="w-live") == writer.record(LedgerAction(action="note"))
    files = [path.stat().st_size for path in root.rglob("*") if path.is_file()]
    read = Read(metrics.LedgerCollector(Ledger(root)).text())
    taken = {path.name: read("rose_ledger_bytes", folder=path.name) or 0 for path in root.iterdir() if path.is_dir()}
    assert sum(taken.values()) + (read("rose_ledger_bytes", folder=".") or 0) == sum(files)
    assert taken["live"] == sum(path.stat().st_size for path in root.glob("live/*/*/*.parquet"))
    assert (read("rose_ledger_free_disk_bytes") or 0) > 0


def fail(root):
    raise LedgerError("no")


def test_what_the_jobs_say(root):
    assert Read(metrics.LedgerCollector(Ledger(root)).text())("rose_ledger_audit_ok") is None
    (audit,) = [job for job in ledger_jobs() if job.name == "audit"]
    run_job(Ledger(root), audit)
    read = Read(metrics.LedgerCollector(Ledger(root)).text())
    assert (read("rose_ledger_audit_ok"), read("rose_job_ok", job="audit")) == (1, 1)
    assert 0 <= (read("rose_job_last_success_age_seconds", job="audit") or -1) < 60
    assert (read("rose_job_last_duration_seconds", job="audit") or 0) > 0
    path = sorted(root.glob("live/w-live/*/*.parquet"))[-1]
    good = path.rename(path.with_name(f"{path.name.partition('-')[0]}-{'0' * 64}.parquet"))
    run_job(Ledger(root), audit)
    run_job(Ledger(root), Job("j", fail, 300))
    assert good.exists()
    read = Read(metrics.LedgerCollector(Ledger(root)).text())
    assert (read("rose_ledger_audit_ok"), read("rose_job_ok", job="audit")) == (0, 0)
    assert read("rose_job_last_success_age_seconds", job="audit") is not None
    assert read("rose_job_ok", job="j") == 0
    assert read("rose_job_last_success_age_seconds", job="j") is None, "it never succeeded"


def test_a_ledger_that_cannot_be_read_gives_no_figures(root, tmp_path):
    with pytest.raises(LedgerError, match="is not a ledger"):
        metrics.LedgerCollector(Ledger(tmp_path))
    for path in root.glob("live/w-live/*/*.parquet"):
        path.write_bytes(b"damaged")
    with pytest.raises(LedgerError):
        metrics.LedgerCollector(Ledger(root)).text()


def test_every_metric_is_documented_and_the_documented_rules_speak_of_metrics_that_are_there(root):
    for job in ledger_jobs():
        run_job(Ledger(root), job)
    names = {}
    for family in text_string_to_metric_families(metrics.LedgerCollector(Ledger(root)).text()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        names[name] = {label for sample in family.samples for label in sample.labels}
        assert family.documentation.endswith("."), name
    documented = (HOME / "docs/ledger.md").read_text(encoding="utf-8").splitlines()
    for name, labels in names.items():
        (line,) = [line for line in documented if line.startswith("|") and f"`{name}`" in line]
        assert labels in (set(re.findall(r"`(\w+)`", line.rsplit("|", 2)[1])), set()), name
    alerts = yaml.safe_load((HOME / "deploy/prometheus/rose-ledger.yml").read_text(encoding="utf-8"))
    ((group,),) = alerts.values()
    for rule in group["rules"]:
        asked = re.findall(r"(rose_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked, rule["alert"]
        for name, selector in asked:
            assert set(re.findall(r"(\w+)=~?\"", selector)) <= names[name], rule["alert"]


def test_how_far_a_writer_is_shows_without_a_query_also_after_a_compaction(tmp_path, lease, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    root = tmp_path / "ledger"
    record(root, writer="silent")
    record(root, *(lease(at_us=1000 - n) for n in range(7)))
    newest = sorted((root / "live/w").iterdir())[-1]
    for _ in range(2):
        assert [metrics.writer_state(Ledger(root), name) for name in ("silent", "w")] == [(0, None), (7, 994)]
        compact(Ledger(root), grace_s=0)
    shutil.rmtree(newest)
    # A merged file holds events 0 to 5; its newest by time is its first.
    assert metrics.writer_state(Ledger(root), "w") == (6, 1000)
