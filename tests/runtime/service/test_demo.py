import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from rose.config.example import demo
from rose.events import BUCKETS
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report
from rose.runtime.coserving.attachment import described
from rose.runtime.host_plan import HostPlan
from tests.ledger.conftest import ask

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

STEPS_SEEN = 2
#: `rose demo` with steps of 32 trajectories, where it has 224.
PROGRAM = """
from rose import cli
from rose.config import example as config_example

whole = config_example.demo


def smaller(*arguments, **options):
    fleet = whole(*arguments, **options)
    training = fleet.training.model_copy(update={"groups_per_step": 4})
    return fleet.model_copy(update={"training": training})


config_example.demo = smaller
cli.main()
"""


#: In the environment of a demo and of all that it starts: which of a host's fleets they are of.
MARK = "ROSE_TEST_DEMO"
#: Ray's own two agents look for their raylet only about once a minute, so they outlive a killed Ray by as much.
RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")


def start(ledger, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "demo", "--ledger", str(ledger), "--seconds", "3600", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "140", MARK: str(ledger)},
        start_new_session=True,
    )


def ours(ledger):
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(ledger) and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process, " ".join(process.info["cmdline"] or [])))
    return found


def wait_gone(ledger, seconds=30, *, besides=()):
    deadline = time.monotonic() + seconds
    while left := [line[:80] for _, line in ours(ledger) if not line.startswith(besides)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return left


def lent_engines(ledger):
    lent = "kind = 'engine' and role = 'rollout' and device_id = 'serving-0' and action in ('started', 'died')"
    return ask(ledger, f"select action from event where {lent} order by event_time limit 3")


def lent(ledger):
    """Return whether rollouts made a turn on the serving device, and gave way to serving."""
    turns = "from turn where device_id = 'serving-0' and outcome = 'completed'"
    return ask(ledger, f"select exists({turns}) and exists(from preemption)") == [(True,)]


def kill_lent_engine(ledger):
    plan = HostPlan(config=demo([0, 1], ledger=ledger), host="local", run_id="", controller_url="")
    os.kill(described(plan.memory / "serving-0" / "page", "rollout").pid, signal.SIGKILL)


def kill(ledger, *texts):
    for text in texts:
        victims = [process for process, line in ours(ledger) if text in line]
        assert victims, f"the demo has no process {text}"
        with contextlib.suppress(psutil.Error):
            victims[0].kill()


def ask_without_token(address):
    program = f"import ray; ray.init(address={address!r}, log_to_driver=False)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {"HOME": "/tmp"}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, **pipes)


@pytest.fixture(scope="module")
def without_token():
    processes = []
    yield processes
    for process in processes:
        process.kill()


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory, without_token):
    ledger = tmp_path_factory.mktemp("live") / "ledger"
    process = start(ledger, "--steps", "50")
    lines, interrupted = [], False
    watchdog = threading.Timer(480, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            lines.append(line)
            # The end of the demo joins Ray again.
            if (joined := re.search(r"joining Ray at (\S+)", line)) is not None and not without_token:
                without_token.append(ask_without_token(joined[1]))
            step = re.search(r"step (\d+)/50:", line)
            steps = int(step[1]) if step else 0
            if steps == 1:
                kill_lent_engine(ledger)
                kill(ledger, "ray::ControllerActor", "ray::HostActor")
            if steps >= STEPS_SEEN and not interrupted and len(lent_engines(ledger)) >= 3 and lent(ledger):
                interrupted = True
                process.send_signal(signal.SIGINT)
        code = process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    finally:
        watchdog.cancel()
    return ledger, "".join(lines), code


def test_it_stops_cleanly_and_ends_with_the_cost_report(stopped_run):
    ledger, output, code = stopped_run
    assert code == 0, output
    assert "the demo stopped early" in output, output
    assert "before the end of the first step" not in output
    assert "Traceback" not in output
    assert "The fleet's device time and cost" in output
    assert wait_gone(ledger) == []


def test_parts_that_are_killed_cost_serving_nothing_and_the_run_goes_on(stopped_run):
    ledger, _, _ = stopped_run
    failed = "from request where outcome <> 'completed' and reason <> 'replay cancelled'"
    assert ask(ledger, f"select outcome, reason {failed}") == []
    assert ask(ledger, "select count(*) > 10 from request where outcome = 'completed'") == [(True,)]
    for nothing in (
        "from trajectory where outcome = 'lost'",
        "from event where kind = 'engine' and action = 'died' and role = 'serving'",
        "from lease where closed_by is null",
    ):
        assert ask(ledger, nothing) == []
    assert lent_engines(ledger) == [("started",), ("died",), ("started",)]
    assert ask(ledger, "select count(*) = count(distinct step) from step") == [(True,)]


def test_whoever_has_no_token_of_its_ray_runs_nothing_there(stopped_run, without_token):
    (process,) = without_token
    _, error = process.communicate()
    assert process.returncode != 0
    assert "token" in error.lower()


def test_its_ledger_is_whole(stopped_run):
    ledger, _, _ = stopped_run
    found = Ledger(ledger).verify()
    assert found.ok, found.problems
    fields = "status, trace, trace_keep_share, trace_length_scale"
    fleet, *others = ask(ledger, f"select {fields} from run order by fleet_run_id <> run_id")
    (status, trace, keep, scale), other = fleet, others[0][0]
    assert (status, other, trace) == ("ended", "ended", "bursty")
    assert 0 < keep <= 1
    assert 0 < scale <= 1


def test_every_step_was_played_on_versions_that_are_new_enough(stopped_run):
    """An engine may skip a version, so the syncs of a step are not counted."""
    ledger, output, _ = stopped_run
    staleness_max = demo([0, 1], ledger=ledger).training.staleness_max
    steps = [step for (step,) in ask(ledger, "select step from step order by step")]
    turns = ask(ledger, "select step, device_id, policy_version from turn where outcome = 'completed'")
    synced = "from sync where ok and source <> 'audit' order by event_time"
    syncs = ask(ledger, f"select device_id, policy_version {synced}")
    # The last one may be recorded already and not yet said.
    assert STEPS_SEEN <= len(steps) <= int(re.findall(r"step (\d+)/50:", output)[-1]) + 1
    assert steps == list(range(len(steps)))
    assert {step for step, _, _ in turns} >= set(steps)
    assert min(version - (step - staleness_max) for step, _, version in turns) >= 0
    assert {(device_id, version) for _, device_id, version in turns} <= set(syncs)
    for device in {device_id for device_id, _ in syncs}:
        versions = [version for device_id, version in syncs if device_id == device]
        assert versions == sorted(versions)


def test_the_run_borrowed_yielded_and_synced(stopped_run):
    ledger, _, _ = stopped_run
    pools = ask(ledger, "select distinct pool from turn join device using (device_id) where outcome = 'completed'")
    assert {pool for (pool,) in pools} == {"serving", "rollout"}
    for view in ("lease", "preemption"):
        assert ask(ledger, f"from {view}")
    deltas = "from sync where ok and encoding = 'delta'"
    assert ask(ledger, f"select sum(dense_bytes) / sum(wire_bytes) > 1.5 {deltas}") == [(True,)]


def test_device_time_sums_to_provisioned_time_exactly(stopped_run):
    ledger, _, _ = stopped_run
    buckets = " + ".join(f"sum({bucket}_ns)" for bucket in BUCKETS)
    devices = ask(
        ledger,
        f"select device_id, {buckets}, any_value(left_ns - joined_ns) from device_slice"
        " join device using (device_id) group by device_id",
    )
    assert len(devices) == 2
    for device_id, counted, provisioned in devices:
        assert counted == provisioned, device_id
    lost = ask(ledger, "select detail_json from event where kind = 'ledger' and action = 'slices_closed'")
    assert len(lost) == 2
    assert all(json.loads(detail)["lost_spans"] == 0 for (detail,) in lost)


def test_every_token_has_one_version_and_one_owner(stopped_run):
    ledger, _, _ = stopped_run
    in_trajectories = "trajectory_id in (select trajectory_id from trajectory)"
    made = ask(ledger, f"select sum(output_tokens) from turn where {in_trajectories}")
    assert made == ask(ledger, "select sum(output_tokens) from trajectory")
    of_steps = "from trajectory where step in (select step from step)"
    assert ask(ledger, "select count(*) from verdict") == ask(ledger, f"select count(*) {of_steps}")
    ((stale,),) = ask(ledger, "select max(staleness) from trajectory")
    assert stale <= demo([0, 1], ledger=ledger).training.staleness_max


def test_its_report_prices_it(stopped_run):
    priced = run_report.build(Ledger(stopped_run[0])).to_json()
    assert (priced["stamp"]["provenance"], priced["stamp"]["verified"]) == ("live", True)
    borrowed, dedicated = priced["report"]["tokens"]["rows"]
    assert borrowed["marginal"]["value"] > 0
    assert dedicated["amortized"]["value"] > 0


@pytest.mark.long
def test_killing_the_demo_ends_its_fleet_in_order(tmp_path):
    ledger = tmp_path / "ledger"
    process = start(ledger)
    try:
        for line in process.stdout:
            if "accepted" in line:
                break
        else:
            pytest.fail("the demo ended before its first step was over")
    finally:
        process.kill()
        process.wait()
    assert wait_gone(ledger, 60, besides=RAY_AGENTS) == []
    assert Ledger(tmp_path / "ledger").verify().ok
    assert ask(ledger, "select status from run where fleet_run_id = run_id") == [("ended",)]
