import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rose.clock import utc_us
from rose.events import Device, Lease, Power
from rose.ledger.files import layout, segments, spool
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import query
from rose.ledger.writer import LedgerWriter
from rose.runtime import preflight
from rose.runtime.coserving.attach.attaching import has_engine
from rose.runtime.engines import adoption
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineError, EngineProcess
from rose.runtime.memory_plan import MemoryPlan
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.service import owner
from rose.runtime.service.host import HostActor, HostRunner
from rose.runtime.service.host_plan import HostPlan
from rose.runtime.serving import answers
from rose.tokens import of_secret
from tests import programs
from tests.long_form import LONG
from tests.runtime.conftest import until
from tests.runtime.coserving.owned_server import Owner, served
from tests.runtime.service import own_serving

#: Jobs of a host give way to all else that the machine does.
pytestmark = pytest.mark.timeout(1200)

TOKEN = "a-token-of-the-tests"
AGENT_TOKEN = "agent-token-of-tests"
FAR_TOKEN = "token-of-the-host-far"
FAR = of_secret("far", FAR_TOKEN, ("append",), ("far.*",))
#: A host's process, whose epochs have four segments and whose jobs are due every three seconds.
HOST = """
import functools, pickle, signal, sys
from pathlib import Path
from rose.ledger.files import segments
from rose.ledger.upkeep import jobs
from rose.runtime.service.host import HostRunner
from tests.runtime.service.stand_ins import StandIn
segments.SEGMENTS_PER_EPOCH = 3
jobs.Settings = functools.partial(jobs.Settings, compact_every_s=3.0, roll_up_every_s=3.0)
runner = HostRunner(pickle.loads(Path(sys.argv[1]).read_bytes()), StandIn)
signal.signal(signal.SIGTERM, lambda *_: runner.stop(leave=False))
runner.run()
"""
EPOCHS = 40


class FarHost:
    def __init__(self, folder: Path, controller_url: str) -> None:
        plan = own_serving.plan_of(folder, controller_url)
        near, far = plan.config.device
        changes = {
            "name": f"far-{os.getpid()}",
            "ledger": folder / "far",
            "device": [near.model_copy(update={"serving_url": "http://127.0.0.1:1"}), far],
            "coserving": plan.config.coserving.model_copy(update={"enabled": True}),
        }
        config = plan.config.model_copy(update=changes)
        self.plan = replace(plan, config=config, host="far", ledger_token=FAR_TOKEN, agent_token=AGENT_TOKEN)
        self._file, self._log = folder / "plan", folder / "log"
        self._file.write_bytes(pickle.dumps(self.plan))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([sys.executable, "-c", HOST, self._file], stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(60) == 0, self._log.read_text()[-4000:]

    def clean(self) -> None:
        with suppress(OSError, psutil.Error):
            self.stop()
        for record in adoption.living(self.plan.memory):
            os.kill(record.pid, signal.SIGKILL)
        shutil.rmtree(self.plan.memory, ignore_errors=True)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    port, centre = free_port(), tmp_path / "centre"
    with programs.in_thread(
        lambda: Gateway("127.0.0.1", port, TOKEN, agent_token=AGENT_TOKEN, ledger=centre, host_tokens=[FAR])
    ):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def host(tmp_path: Path, controller: str) -> Iterator[FarHost]:
    made = FarHost(tmp_path, controller)
    yield made
    made.clean()


def test_a_host_without_devices_needs_no_checkpoint(tmp_path: Path, controller: str) -> None:
    far = FarHost(tmp_path, controller)
    shutil.rmtree(tmp_path / "model")
    config = far.plan.config
    devices = [device.model_copy(update={"host": "far"}) for device in config.device]
    plan = replace(far.plan, host="near", ledger_token="", config=config.model_copy(update={"device": devices}))
    runner = HostRunner(plan)
    with own_serving.host_running(runner) as running:
        until(lambda: runner.report().ready or not running.is_alive(), 60.0)
        assert runner.report().ready, runner.report().doing
    shutil.rmtree(plan.memory, ignore_errors=True)


def test_a_host_with_traffic_to_replay_starts_nothing_while_its_trace_cannot_be_read(tmp_path: Path) -> None:
    plan = own_serving.plan_of(tmp_path)
    traffic = plan.config.traffic.model_copy(update={"trace": str(tmp_path / "trace.csv")})
    runner = HostRunner(replace(plan, config=plan.config.model_copy(update={"traffic": traffic})))
    with own_serving.host_running(runner):
        until(lambda: runner.report().doing != "starting", 60.0)
        assert runner.report().doing.startswith(f"cannot read trace {tmp_path}/trace.csv: No such file")
        assert not (plan.state / "serving.json").exists()
    runner.clear()


def lent_gpu(folder: Path, url: str) -> HostPlan:
    plan = own_serving.plan_of(folder)
    device, far = plan.config.device
    device = device.model_copy(update={"gpu": 0, "cores": [], "serving_url": url})
    lends = plan.config.coserving.model_copy(update={"enabled": True})
    return replace(plan, config=plan.config.model_copy(update={"device": [device, far], "coserving": lends}))


def test_after_a_boot_who_serves_on_a_lent_gpu_comes_before_its_memory_is_measured_or_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Noted(EngineProcess):
        def launch(self) -> None:
            done.append("launched")
            raise EngineError("this test has no engines")

    def measure(_memory: MemoryPlan) -> dict[str, int]:
        done.append("measured")
        return {"s": 80 << 30}

    monkeypatch.setattr(preflight, "check_gpus", measure)
    monkeypatch.setattr("rose.runtime.service.host._AGAIN_S", 0.05)
    port = free_port()
    plan = lent_gpu(tmp_path, f"http://127.0.0.1:{port}")
    # The fleet run goes on, and the host was checked for it before the boot.
    plan.state.mkdir(parents=True)
    (plan.state / "checked").write_text(plan.run_id)
    runner = HostRunner(plan, Noted)
    with own_serving.host_running(runner) as running:
        awaited = f"device 's': no SGLang server answers at serving_url http://127.0.0.1:{port}"
        until(lambda: done or awaited in runner.report().doing)
        assert done == []
        with served(Owner(), port):
            until(lambda: "launched" in done or not running.is_alive())
        assert done[:2] == ["measured", "launched"]
        assert done.count("measured") == 1
    shutil.rmtree(plan.memory, ignore_errors=True)


@pytest.mark.long
def test_an_owner_of_serving_that_died_is_started_again_and_what_cannot_be_ended_in_order_is_named(
    tmp_path: Path, controller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "_MODULE", own_serving.MODULE)
    monkeypatch.setattr("rose.runtime.service.host._AGAIN_S", 0.2)
    actor = HostActor(own_serving.plan_of(tmp_path, controller))
    try:
        until(lambda: actor.report().ready)
        plan = actor._runner.plan
        urls, pid, page = owner.urls(plan), own_serving.record(plan)["pid"], plan.memory / "s" / "page"
        assert has_engine(page)
        os.kill(pid, signal.SIGKILL)
        until(lambda: "is starting" in actor.report().doing)
        until(lambda: actor.report().ready)
        assert own_serving.record(plan)["pid"] != pid
        assert owner.urls(plan) == urls
        assert has_engine(page)
        shutil.rmtree(plan.ledger)
        plan.ledger.write_text("no folder")
    finally:
        said = actor.stop(serving=True)
    assert {text.partition(": did not end in order: LedgerError: ")[0] for text in said} >= {"the host's events"}
    assert "the host's events: did not end in order" in (plan.logs / "host.log").read_text()
    (url,) = urls.values()
    assert not answers(url)
    assert not owner.runs(plan)
    assert not plan.memory.exists()


def test_what_a_killed_agent_left_is_ended_or_named_though_no_other_came_to_begin(
    tmp_path: Path, controller: str
) -> None:
    plan = FarHost(tmp_path, controller).plan
    lease = Lease(
        action="granted",
        lease_id="fleet-1-r-7",
        device_id="r",
        engine_id="e",
        kv_budget_bytes=1,
        compute_share=1.0,
        expires_at_us=utc_us() + 1,
    )
    with LedgerWriter.open(plan.ledger, "far.agent", "fleet-1") as writer:
        writer.record(Device(action="joined", device_id="r", t_ns=1, pool="rollout", device_class="cpu-core"))
        writer.record(lease)
    shutil.rmtree(tmp_path / "model")
    actor = HostActor(plan)
    until(lambda: "model" in actor.report().doing)
    (undone,) = actor.stop(serving=True)
    assert undone.startswith("device r: did not end in order: UserError: its agents had ended earlier")
    for ledger in (plan.ledger, tmp_path / "centre"):
        leases = "SELECT lease_id, action, reason FROM lease_event WHERE action <> 'granted'"
        assert query(Ledger(ledger), leases).rows == [
            ("fleet-1-r-7", "expired", "its agent ended while it was in force")
        ]
    assert not plan.memory.exists()


def age_manifests(root: Path) -> None:
    for manifest in root.glob("compacted/*/*.json"):
        with suppress(FileNotFoundError):
            os.utime(manifest, (time.time() - 120, time.time() - 120))


@pytest.mark.long
def test_a_spool_is_merged_while_it_is_forwarded_and_through_kills_nothing_is_lost(
    tmp_path: Path, host: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, centre, wrote = tmp_path / "far", tmp_path / "centre", "far.before"
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 3)
    with LedgerWriter.open(root, wrote, "fleet-1") as writer:
        for n in range(3 * EPOCHS):
            writer.record(Power(device_id="r", t0_ns=n, t1_ns=n + 1, power_mw=n, source="other"), durable=True)
    (root / spool.FOLDER).mkdir(parents=True)
    assert len(layout.epochs(root, wrote)) >= EPOCHS
    host.start()
    until(lambda: list(root.glob(f"compacted/{wrote}/*.json")))
    host.kill()
    host.start()

    def merged() -> bool:
        age_manifests(root)
        return len(layout.epochs(root, wrote)) == 1 and len(layout.parts(root, wrote)) < EPOCHS // 2

    until(merged)
    if LONG:
        host.kill()
        epoch = max(layout.epochs(root, "far.agent"))
        host.start()
        # It is at work once its writer is, and is asked to stop no sooner.
        until(lambda: max(layout.epochs(root, "far.agent")) > epoch)
    until(lambda: query(Ledger(root), "SELECT count(*) FROM job WHERE job = 'roll-up' AND ok").rows[0][0] > 0)
    until(lambda: (spool.first_unsent_epoch(root, "far.agent") or 0) > 1)
    host.stop()
    for where in (root, centre):
        assert Ledger(where).verify().problems == []
    counted = "SELECT count(*), count(DISTINCT power_mw) FROM event WHERE kind = 'power' AND writer = 'far.before'"
    assert query(Ledger(root), counted).rows == query(Ledger(centre), counted).rows == [(3 * EPOCHS, 3 * EPOCHS)]
    sums = "SELECT kind, count(*), max(seq) FROM event WHERE writer = 'far.agent' GROUP BY kind ORDER BY kind"
    assert query(Ledger(root), sums).rows == query(Ledger(centre), sums).rows != []
    assert len(list(root.glob(f"*/{wrote}/**/*.parquet"))) < EPOCHS // 2
