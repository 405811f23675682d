"""Real SGLang engines, started, updated, gated, killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.coserving.sync import EngineSync
from rose.runtime.engines.sglang import EngineError, EngineProcess, EngineSpec, free_port
from rose.runtime.policy.slack import Budgets, Hold, LeaseTerms
from rose.runtime.training.policy_model import Policy
from rose.runtime.transfer.server import StoreServer
from rose.runtime.transfer.store import VersionStore

pytestmark = pytest.mark.live

FOREVER_NS = 3_600_000_000_000


def make_spec(folder, model, *, gated=True, **changes):
    page = ArbiterPage.create(folder / "page")
    page.set_budgets(Budgets(2_000_000_000, 250_000_000), 64)
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    spec = EngineSpec(
        engine_id="test-engine",
        model=str(model),
        model_name="untrained",
        port=free_port(),
        max_total_tokens=4096,
        plugin=PluginSettings("rollout", page.path, staging, gated),
        log=folder / "engine.log",
        cores=[min(os.sched_getaffinity(0))],
        token_ids_only=True,
    )
    return page, EngineSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, **changes})


def lend(page, number, for_ns=FOREVER_NS, kv_tokens=1 << 30):
    page.set_lease(number, LeaseTerms(monotonic_ns() + for_ns, 1.0, kv_tokens))


@pytest.fixture(scope="module")
def running(tmp_path_factory, tiny_policy):
    page, spec = make_spec(tmp_path_factory.mktemp("engine"), tiny_policy)
    engine = EngineProcess(spec)
    lend(page, 1)
    engine.launch()
    engine.wait_ready()
    yield page, engine
    engine.stop()


def generate(engine, tokens=8, prompt=(1, 2, 3)):
    body = {"input_ids": list(prompt), "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    return engine.post("/generate", body)


def test_it_generates_and_accounts_for_its_steps(running):
    page, engine = running
    lend(page, 2)
    time.sleep(0.2)
    began = monotonic_ns()
    assert len(generate(engine, 8)["output_ids"]) == 8
    time.sleep(0.2)  # an answer leaves the engine a moment before its last step is closed
    spans, _, lost = page.drain(Party.ROLLOUT, 0)
    steps = [span for span in spans if span.kind is Span.ROLLOUT and span.start_ns >= began]
    assert lost == 0
    assert len(steps) == 8  # one prefill, which makes the first token, and seven decodes
    assert all(span.start_ns < span.end_ns <= monotonic_ns() for span in steps)
    assert page.get(Party.ROLLOUT, Field.KV_TOKENS_TOTAL) == 4096


def test_without_a_lease_nothing_runs_and_with_one_it_goes_on(running):
    page, engine = running
    page.set_lease(3, LeaseTerms(0, 0.0, 0))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(generate(engine, 4)))
    thread.start()
    time.sleep(1.0)
    assert not answers
    assert page.get(Party.ROLLOUT, Field.LAST_HOLD) == Hold.NO_LEASE
    lend(page, 4)
    thread.join(20)
    assert len(answers[0]["output_ids"]) == 4


def test_an_unrenewed_lease_ends_by_itself(running):
    page, engine = running
    lend(page, 5, for_ns=300_000_000)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(generate(engine, 400)))
    thread.start()
    time.sleep(1.5)
    page.drain(Party.ROLLOUT, 0)
    last_step = max(span.end_ns for span in page.drain(Party.ROLLOUT, 0)[0] if span.kind is Span.ROLLOUT)
    assert last_step < page.lease().expires_ns + 200_000_000
    assert not answers
    engine.post("/abort_request", {"rid": "", "abort_all": True})
    thread.join(20)
    # What was made before the lease ended is kept by whoever asked.
    assert 0 < len(answers[0]["output_ids"]) < 400


def test_a_running_step_yields_while_serving_is_in_one(running):
    page, engine = running
    lend(page, 6)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(generate(engine, 400)))
    thread.start()
    time.sleep(0.3)
    page.set(Party.SERVING, Field.PID, os.getpid())
    page.set(Party.SERVING, Field.IN_STEP_SINCE_NS, monotonic_ns())
    time.sleep(0.1)
    quiet_from = monotonic_ns()
    time.sleep(0.5)
    quiet_until = monotonic_ns()
    page.set(Party.SERVING, Field.IN_STEP_SINCE_NS, 0)
    thread.join(30)
    assert len(answers[0]["output_ids"]) == 400
    worked = [span for span in page.drain(Party.ROLLOUT, 0)[0] if span.kind is Span.ROLLOUT]
    assert not [span for span in worked if span.start_ns < quiet_until and span.end_ns > quiet_from]


def test_a_serving_engine_that_died_in_its_step_is_not_waited_for(running):
    page, engine = running
    lend(page, 7)
    dead = subprocess.Popen(["true"])
    dead.wait()
    page.set(Party.SERVING, Field.PID, dead.pid)
    page.set(Party.SERVING, Field.IN_STEP_SINCE_NS, monotonic_ns())
    assert len(generate(engine, 4)["output_ids"]) == 4
    assert not page.serving_in_step()


def test_it_goes_from_version_to_version_by_verified_deltas(running, tiny_policy, tmp_path):
    import torch

    page, engine = running
    lend(page, 8)
    weights = Policy.load(tiny_policy).weights()
    store = VersionStore(tmp_path / "store")
    sync = EngineSync(engine, engine.spec.plugin.staging, device_id="d0", route="loopback")
    with StoreServer(store) as server:
        store.publish(0, weights)
        for version in (1, 2):
            weights = {
                name: (tensor.float() + (torch.rand(tensor.shape) < 0.02) * 0.01).to(tensor.dtype)
                for name, tensor in weights.items()
            }
            store.publish(version, weights)
            event = sync.bring_to(version, server.url, None, step=version)
            assert event.ok, event.reason
            assert (event.encoding, event.base_version) == ("delta", version - 1)
            assert event.wire_bytes < event.dense_bytes / 4
            assert event.pause_ns > 0
        assert page.get(Party.ROLLOUT, Field.POLICY_VERSION) == 2
        answer = generate(engine, 4)
        assert [span["version"] for span in answer["meta_info"]["weight_versions"]] == ["2"]

        # An engine that is not where its agent believes is brought back from an anchor, not left to drift.
        stray = EngineSync(engine, engine.spec.plugin.staging, device_id="d0", route="loopback")
        event = stray.bring_to(2, server.url, None, step=None)
        assert event.ok, event.reason
        assert event.base_version is None


def test_a_version_that_does_not_exist_changes_nothing(running, tmp_path, tiny_policy):
    page, engine = running
    store = VersionStore(tmp_path / "store")
    store.publish(0, Policy.load(tiny_policy).weights())
    sync = EngineSync(engine, engine.spec.plugin.staging, device_id="d0", route="loopback")
    before = page.get(Party.ROLLOUT, Field.POLICY_VERSION)
    with StoreServer(store) as server:
        event = sync.bring_to(9, server.url, None, step=None)
    assert not event.ok
    assert "9" in event.reason
    assert page.get(Party.ROLLOUT, Field.POLICY_VERSION) == before


def test_stopping_leaves_no_process(running, gone):
    """Last of those that share the engine: it ends it."""
    _, engine = running
    engine.stop()
    assert gone(engine.pid) == []
    assert not engine.alive
    engine.stop()


def test_an_engine_dies_with_the_process_that_started_it(tmp_path, tiny_policy, gone):
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_sglang import make_spec, lend
from rose.runtime.engines.sglang import EngineProcess
page, spec = make_spec(Path({str(tmp_path)!r}), {str(tiny_policy)!r})
lend(page, 1)
engine = EngineProcess(spec)
engine.launch()
print(engine.pid, flush=True)
engine.wait_ready()
print("ready", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    group = int(parent.stdout.readline())
    assert parent.stdout.readline().strip() == "ready"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(group) == []


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(tmp_path, gone):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    _, spec = make_spec(tmp_path, broken)
    engine = EngineProcess(spec)
    engine.launch()
    with pytest.raises(EngineError, match=r"test-engine .*ended with exit code") as caught:
        engine.wait_ready()
    assert str(spec.log) in str(caught.value)
    assert gone(engine.pid) == []


def test_a_port_in_use_is_named(tmp_path, tiny_policy):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, spec = make_spec(tmp_path, tiny_policy, port=taken.getsockname()[1])
        with pytest.raises(EngineError, match=f"port {spec.port} for engine test-engine"):
            EngineProcess(spec).launch()
