"""Two real engines on one core: serving, with SGLang's overlapped loop and never without a request, and rollouts."""

import dataclasses
import functools
import json
import os
import re
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from rose.clock import monotonic_ns
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.agent import DeviceAgent
from rose.runtime.coserving.page import Field, Party, Span
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.ports import free_port
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms
from rose.runtime.scheduling.gateway import Gateway
from rose.runtime.service.console import ControllerClient
from tests import programs
from tests.ledger.conftest import ask
from tests.runtime.agent.agent_of_engine import agent_spec, straight
from tests.runtime.conftest import until
from tests.runtime.coserving.stand_in_engine import StandInEngine, stand_in_spec
from tests.runtime.engines.test_sglang import FOREVER_NS, MEMORY, generate, make_spec
from tests.runtime.scheduling.stand_ins import AGENT_TOKEN

pytestmark = pytest.mark.live

JSON = {"Content-Type": "application/json"}

#: No engine keeps the TPOT budget of priority 1.
BUDGETS = Budgets(ttft_ns=4_000_000_000, tpot_ns=400_000_000, classes={1: Budgets(ttft_ns=4_000_000_000, tpot_ns=1)})
LIVE = 3


def lend(page, number, for_ns=FOREVER_NS, **terms):
    usual = {"compute_share": 1.0, "kv_budget_tokens": 1 << 30, "regret_share": 0.05, "policy": NAMES.index("rose")}
    page.set_lease(LeaseTerms(number=number, expires_ns=monotonic_ns() + for_ns, **usual, **terms))


def in_mid_credit(page):
    span = page.open(Party.ROLLOUT, monotonic_ns())
    return span is not None and span.kind is Span.BESIDE


@pytest.fixture(scope="module")
def engines(tmp_path_factory, tiny_policy, fork_server):
    """(page, serving, rollouts), ready; both compute on one core."""
    folder = tmp_path_factory.mktemp("busy")
    cores = sorted(os.sched_getaffinity(0))
    page, rollout_spec = make_spec(
        folder, tiny_policy, fork_server=fork_server.path, host_cores=[cores[-1]], idle_class=True
    )
    plugin = dataclasses.replace(rollout_spec.plugin, host_cores=(cores[-1],))
    rollout_spec = dataclasses.replace(rollout_spec, plugin=plugin)
    page.set_terms(BUDGETS, 64, dataclasses.replace(MEMORY, device_bytes=1 << 20))
    serving_spec = dataclasses.replace(
        rollout_spec,
        engine_id="serving",
        port=free_port(),
        idle_class=False,
        overlap=True,
        plugin=PluginSettings("serving", page.path, rollout_spec.plugin.staging, False),
        log=folder / "serving.log",
    )
    serving, rollouts = EngineProcess(serving_spec), EngineProcess(rollout_spec)
    lend(page, 1)
    serving.launch()
    rollouts.launch()
    for engine in (serving, rollouts):
        engine.wait_ready()
        engine.settle()
    yield page, serving, rollouts
    rollouts.stop()
    serving.stop()


class Loop(threading.Thread):
    def __init__(self, engine, tokens, prompt):
        super().__init__(daemon=True)
        self.engine, self.tokens, self.prompt = engine, tokens, prompt
        self.stopping = False
        self.failure = None
        self.start()

    def run(self):
        try:
            while not self.stopping:
                generate(self.engine, self.tokens, self.prompt)
        except Exception as error:
            self.failure = error


@pytest.fixture
def busy(engines):
    page, serving, rollouts = engines
    for _ in range(8):
        generate(serving, 8)
    users = [Loop(serving, 150 + 40 * number, (number, 2, 3)) for number in range(LIVE)]
    until(lambda: page.get(Party.SERVING, Field.RUNNING) == LIVE)
    turns = Loop(rollouts, 200, (7, 8, 9))
    yield page
    for loop in (*users, turns):
        loop.stopping = True
    lend(page, 9, stretch=100.0, slack_share=1.0)
    for loop in (*users, turns):
        loop.join(60)
    assert [user.failure for user in users] == [None] * LIVE
    assert turns.failure is None or not rollouts.alive


def steps_in(page, seconds):
    before = page.get(Party.ROLLOUT, Field.STEPS)
    time.sleep(seconds)
    return page.get(Party.ROLLOUT, Field.STEPS) - before


def test_the_tokenizer_of_a_lent_engine_is_not_starved_beside_serving(engines):
    _, _, rollouts = engines
    tasks = [task for process in rollouts.processes() for task in Path(f"/proc/{process.pid}/task").iterdir()]
    threads = [int(task.name) for task in tasks if (task / "comm").read_text().startswith("tokenizer-")]
    assert threads
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}


def test_the_priority_of_a_request_decides_its_budgets(engines):
    page, serving, _ = engines
    for priority, late in ((None, 0), (0, 0), (1, 1)):
        before = page.serving_load()
        generate(serving, 8, priority=priority)
        until(lambda before=before: page.serving_load().finished == before.finished + 1)
        assert page.serving_load().late_alone == before.late_alone + late


def test_rollouts_run_beside_requests_that_never_end_and_none_of_those_is_late_by_it(busy):
    page = busy
    lend(page, 2, stretch=1.0)
    steps_in(page, 1)
    assert steps_in(page, 2) <= 2, "without credit nothing is lent but the moment between two requests"
    lend(page, 3, stretch=100.0, slack_share=1.0)
    tail = page.drain(Party.ROLLOUT, 0)[1]
    work_ns, finished = page.get(Party.ROLLOUT, Field.WORK_NS), page.serving_load().finished
    until(lambda: page.get(Party.ROLLOUT, Field.WORK_NS) > work_ns + 200_000_000)
    assert any(span.kind is Span.BESIDE and span.aux > 0 for span in page.drain(Party.ROLLOUT, tail)[0])
    assert page.get(Party.SERVING, Field.RUNNING) > 0
    until(lambda: page.serving_load().finished >= finished + LIVE)
    assert page.serving_load().late_by_lending == 0


def test_work_beside_serving_ends_with_a_lease_that_a_killed_agent_does_not_renew(busy):
    page = busy

    def lend_for_two_seconds():
        lend(page, 4, for_ns=2_000_000_000, stretch=100.0, slack_share=1.0)

    def in_mid_credit_of_a_short_lease():
        if page.lease().expires_ns < monotonic_ns():  # On a busy host no credit may come within the first one.
            lend_for_two_seconds()
        return in_mid_credit(page)

    lend_for_two_seconds()
    until(in_mid_credit_of_a_short_lease)
    until(lambda: page.lease().expires_ns < monotonic_ns() and not in_mid_credit(page))
    work_ns, finished = page.get(Party.ROLLOUT, Field.WORK_NS), page.serving_load().finished
    until(lambda: page.serving_load().finished >= finished + 2 * LIVE)
    assert page.get(Party.ROLLOUT, Field.WORK_NS) == work_ns
    assert page.serving_load().late_by_lending == 0


def test_serving_goes_on_when_rollouts_are_killed_in_the_middle_of_a_credit(busy, engines):
    page, _, rollouts = engines
    lend(page, 5, stretch=100.0, slack_share=1.0)
    until(lambda: in_mid_credit(page))
    rollouts.kill()
    finished = page.serving_load().finished
    until(lambda: page.serving_load().finished >= finished + 2 * LIVE)
    assert page.serving_load().late_by_lending == 0


def test_an_owner_reads_how_busy_serving_was_while_turns_wait(engines, tmp_path):
    page, serving, rollouts = engines
    rollouts.kill()
    page.close()  # For its agent.
    users = [Loop(serving, 150 + 40 * number, (number, 2, 3)) for number in range(LIVE)]
    port, ledger = free_port(), tmp_path / "ledger"
    url = f"http://127.0.0.1:{port}"

    def call(path, body, method="POST"):
        request = urllib.request.Request(url + path, json.dumps(body).encode(), JSON, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def device():
        return next(iter(ControllerClient(url).status()["devices"]), {"reason": None, "not_lent": ""})

    spec = agent_spec(tmp_path, url, stand_in_spec(tmp_path))
    spec = dataclasses.replace(spec, page=page.path, agent_token=AGENT_TOKEN)
    with ExitStack() as running:
        writer, events = (running.enter_context(LedgerWriter.open(ledger, name, "fleet")) for name in ("c", "a"))
        make = functools.partial(Gateway, "127.0.0.1", port, agent_token=AGENT_TOKEN, writer=writer)
        running.enter_context(programs.in_thread(make))
        agent = DeviceAgent(spec, events.record, make_engine=StandInEngine, via=straight)
        agent.start()
        running.callback(agent.stop)
        run_id = call("/runs", {"name": "grpo", "model": "stand-in"})["run_id"]
        call(f"/runs/{run_id}/versions", {"fence": 1, "version": 0, "url": f"http://127.0.0.1:{free_port()}"})
        turn = {"input_ids": [1], "sampling_params": {"max_new_tokens": 4}}
        waiting = threading.Thread(target=lambda: suppressed(call, f"/runs/{run_id}/generate", turn))
        waiting.start()
        until(lambda: device()["reason"] == "sync_failed" and "serving was at work" in device()["not_lent"])
        assert int(re.search(r"at work (\d+)%", device()["not_lent"])[1]) >= 50
        time.sleep(1.2)  # The controller looks once a second.
        call(f"/runs/{run_id}", {"fence": 1}, "DELETE")
        waiting.join(60)
        for user in users:
            user.stopping = True
    assert ask(ledger, "SELECT count(*) FROM lease") == [(0,)]
    held = ask(ledger, "SELECT explanation FROM hold WHERE lease_id IS NULL AND reason = 'sync_failed'")
    assert any("serving was at work" in explanation for (explanation,) in held), held
    for user in users:
        user.join(60)


def suppressed(act, *arguments):
    with suppress(urllib.error.HTTPError):  # Its run is closed.
        act(*arguments)
