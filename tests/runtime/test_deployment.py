"""A short live deployment: real engines, real traffic, real RL, stopped by Ctrl-C in mid-run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rose.clock import utc_us
from rose.config import demo
from rose.events import BUCKETS, Lease
from rose.ledger import catalog
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from rose.pricing.run import report
from rose.runtime import run_folder
from rose.runtime.coserving.attachment import described
from rose.runtime.coserving.lease_file import LeaseFile, Remembered
from rose.runtime.deployment import Deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROSE = str(Path(sys.executable).with_name("rose"))
STEPS_SEEN = 2


def start(ledger, *arguments):
    return subprocess.Popen(
        [ROSE, "demo", "--ledger", str(ledger), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "140"},
        start_new_session=True,
    )


#: Ray's own two agents look for their raylet only about once a minute, so they outlive a killed driver by as much.
RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def ours_alive():
    """Processes of a deployment that are still there: engines, actors, and Ray's own."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if process.info["status"] != psutil.STATUS_ZOMBIE and (
            "rose.runtime.engines.launch" in line or "sglang::" in line or "raylet" in line or "ray::" in line
        ):
            found.append(line[:80])
    return found


def wait_gone(seconds=30, *, besides=()):
    """Wait until nothing is left, or nothing besides some; returns what is."""
    deadline = time.monotonic() + seconds
    while (left := [line for line in ours_alive() if not line.startswith(besides)]) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory):
    """(ledger, output, exit code) of a run that was interrupted after its second step."""
    ledger = tmp_path_factory.mktemp("live") / "ledger"
    process = start(ledger, "--steps", "50")
    lines = []
    watchdog = threading.Timer(480, process.kill)
    watchdog.start()
    for line in process.stdout:
        lines.append(line)
        if f"step {STEPS_SEEN}/50:" in line:
            process.send_signal(signal.SIGINT)
    code = process.wait()
    watchdog.cancel()
    return ledger, "".join(lines), code


def test_it_stops_cleanly_and_ends_with_the_cost_report(stopped_run):
    _, output, code = stopped_run
    assert code == 0, output
    assert "stopped after 2 steps" in output
    assert "Traceback" not in output
    assert "Where the fleet's time and money went" in output
    assert wait_gone() == []


def test_its_ledger_is_whole(stopped_run):
    ledger, _, _ = stopped_run
    found = verify(ledger)
    assert found.ok, found.problems
    with catalog.connect(ledger) as connection:
        status, trace, keep, scale = connection.execute(
            "select status, trace, trace_keep_share, trace_length_scale from run"
        ).fetchone()
    assert (status, trace) == ("ended", "bursty")
    assert 0 < keep <= 1
    assert 0 < scale <= 1


def test_every_step_borrowed_yielded_and_synced(stopped_run):
    ledger, _, _ = stopped_run
    with catalog.connect(ledger) as connection:
        steps = [row[0] for row in connection.execute("select step from step order by step").fetchall()]
        assert steps == list(range(STEPS_SEEN))
        # Steps overlap, and a lease goes on from one to the next.
        assert connection.execute("select count(*) from lease").fetchone()[0] >= 1
        for step in steps:
            count = connection.execute
            assert count("select count(*) from sync where ok and step = ?", [step]).fetchone()[0] == 2
            pools = count(
                "select distinct pool from turn join device using (device_id) where step = ? and outcome = 'completed'",
                [step],
            ).fetchall()
            assert {pool for (pool,) in pools} == {"serving", "rollout"}
        assert connection.execute("select count(*) from preemption").fetchone()[0] >= 1
        assert connection.execute("select count(*) from request where outcome = 'completed'").fetchone()[0] >= 1
        ratio = connection.execute(
            "select sum(dense_bytes) / sum(wire_bytes) from sync where ok and encoding = 'delta'"
        ).fetchone()[0]
        assert ratio > 1.5


def test_device_time_sums_to_provisioned_time_exactly(stopped_run):
    ledger, _, _ = stopped_run
    buckets = " + ".join(f"sum({bucket}_ns)" for bucket in BUCKETS)
    with catalog.connect(ledger) as connection:
        rows = connection.execute(
            f"select device_id, {buckets}, any_value(left_ns - joined_ns) from device_slice"
            " join device using (device_id) group by device_id"
        ).fetchall()
        lost = connection.execute(
            "select detail_json from event where kind = 'ledger' and action = 'slices_closed'"
        ).fetchall()
    assert len(rows) == 2
    for device_id, counted, provisioned in rows:
        assert counted == provisioned, device_id
    assert len(lost) == 2
    assert all(json.loads(detail)["lost_spans"] == 0 for (detail,) in lost)


def test_every_token_has_one_version_and_one_owner(stopped_run):
    ledger, _, _ = stopped_run
    with catalog.connect(ledger) as connection:
        made = connection.execute(
            "select sum(output_tokens) from turn where trajectory_id in (select trajectory_id from trajectory)"
        ).fetchone()[0]
        kept = connection.execute("select sum(output_tokens) from trajectory").fetchone()[0]
        verdicts, trajectories = connection.execute(
            "select (select count(*) from verdict), (select count(*) from trajectory where step < ?)", [STEPS_SEEN]
        ).fetchone()
        stale = connection.execute("select max(staleness) from trajectory").fetchone()[0]
    assert made == kept
    assert verdicts == trajectories
    assert stale <= demo([0, 1], ledger=ledger).training.staleness_max


def test_its_report_prices_it(stopped_run):
    ledger, _, _ = stopped_run
    priced = report.build(ledger).to_json()
    assert (priced["stamp"]["provenance"], priced["stamp"]["verified"]) == ("live", True)
    assert priced["token_cost"]["borrowed"]["marginal"]["value"] > 0
    assert priced["token_cost"]["dedicated"]["amortized"]["value"] > 0
    done = subprocess.run([ROSE, "report", "--ledger", ledger, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["amortized"] == priced["amortized"]


def test_killing_the_deployment_leaves_no_process_of_ours(tmp_path):
    process = start(tmp_path / "ledger")
    try:
        deadline = time.monotonic() + 120
        while sum("engines.launch" in line for line in ours_alive()) < 3 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert sum("engines.launch" in line for line in ours_alive()) >= 3
        time.sleep(5)
    finally:
        process.kill()
        process.wait()
    assert wait_gone(30, besides=RAY_AGENTS) == []
    assert verify(tmp_path / "ledger").ok


def kill_lent_engine():
    """SIGKILL what computes in the rollout engine of the serving device of the newest run."""
    folders = run_folder.base().glob("rose-demo-*")
    page = max(folders, key=lambda folder: folder.stat().st_mtime) / "serving-0" / "page"
    os.kill(described(page, "rollout").pid, signal.SIGKILL)


def killed(process, *victims):
    """SIGKILL the processes of a run that are described by a text in their command line each."""
    below = psutil.Process(process.pid).children(recursive=True)
    for text in victims:
        for child in below:
            with contextlib.suppress(psutil.Error):
                if any(text in word for word in child.cmdline()):
                    child.kill()
                    break
        else:
            pytest.fail(f"no process of the run is {text}")


def test_parts_that_are_killed_cost_serving_nothing_and_the_run_goes_on(tmp_path):
    process = start(tmp_path / "ledger", "--steps", "3")
    watchdog = threading.Timer(480, process.kill)
    watchdog.start()
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "step 1/3:" in line:
            kill_lent_engine()
            killed(process, "ray::GatewayActor", "ray::AgentActor", "ray::RolloutActor")
    code = process.wait()
    watchdog.cancel()
    output = "".join(lines)
    assert code == 0, output
    for part in ("the gateway", r"the agent of \S+", r"rollout worker \d"):
        assert re.search(f"{part} died and is started again", output), output
    assert "step 3/3:" in output
    assert wait_gone() == []
    found = verify(tmp_path / "ledger")
    assert found.ok, found.problems
    with catalog.connect(tmp_path / "ledger") as connection:
        failed = connection.execute(
            "select outcome, reason from request where outcome <> 'completed' and reason <> 'replay cancelled'"
        ).fetchall()
        served = connection.execute("select count(*) from request where outcome = 'completed'").fetchone()[0]
        lost = connection.execute("select count(*) from trajectory where outcome = 'lost'").fetchone()[0]
        died = connection.execute(
            "select count(*) from event where kind = 'engine' and action = 'died' and role = 'serving'"
        ).fetchone()[0]
    assert failed == []
    assert served > 10
    assert (lost, died) == (0, 0)


def test_a_lease_whose_agent_was_not_back_when_the_run_stopped_is_ended(tmp_path):
    fleet = demo([0, 1], ledger=tmp_path / "ledger")
    deployment = Deployment(fleet, print)
    page = run_folder.path(deployment.run_id) / "serving-0" / "page"
    page.parent.mkdir(parents=True)
    name = f"{deployment.run_id}-serving-0-3"
    granted = Lease(
        device_id="serving-0", engine_id="e", lease_id=name, event_id=f"{name}/granted", action="granted",
        kv_budget_bytes=1, compute_share=1.0, expires_at_us=1, at_us=utc_us(),
    )  # fmt: skip
    LeaseFile(page, deployment.run_id).write(Remembered(3, granted))
    with LedgerWriter.open(tmp_path / "ledger", "deployment", deployment.run_id) as writer:
        deployment._stop_all(writer)
    assert not page.parent.exists()
    with catalog.connect(tmp_path / "ledger") as connection:
        rows = connection.execute("select lease_id, closed_by, close_reason from lease").fetchall()
    assert rows == [(name, "expired", "its agent ended while it was in force")]
