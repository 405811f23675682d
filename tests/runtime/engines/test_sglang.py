import asyncio
import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from contextlib import contextmanager

import pytest
import torch

from benchmarks.transfer.shards import ShardedStore
from rose.clock import monotonic_ns
from rose.runtime.agent.weights.sync import EngineSync, Target
from rose.runtime.coserving.continuation import EARLIER
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.questions import question
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.sglang import EngineProcess
from rose.runtime.models.policy_model import Policy, PolicyShape
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets, LeaseTerms
from rose.runtime.rollout import vocabulary
from rose.runtime.scheduling.turns import turns
from rose.transfer.layout.shards import ModelShape
from rose.transfer.store.store import VersionStore
from rose.transfer.wire.server import StoreServer
from tests.runtime import loads
from tests.runtime.conftest import ENVIRONMENT, engine_spec, until
from tests.runtime.scheduling.stand_ins import play, post

pytestmark = pytest.mark.live

FOREVER_NS = 3_600_000_000_000
#: A device of 10,000 slots of either model, of which 2,000 are headroom.
MEMORY = KvMemory(
    device_bytes=10_000, serving_bytes_per_token=1, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)
IDLE = dataclasses.replace(loads.IDLE, largest_prefill_ns=200_000_000, usual_prefill_ns=200_000_000, finished=1)

#: In bfloat16 an untrained policy's two likeliest tokens are often closer than one rank's rounding is to two ranks'.
EXACT = "--dtype=float32"


def make_spec(folder, model, *, gated=True, **changes):
    page = ArbiterPage.create(folder / "page")
    page.set_terms(Budgets(2_000_000_000, 250_000_000), 64, MEMORY)
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    plugin = PluginSettings("rollout", page.path, staging, gated)
    return page, engine_spec(folder, **{"model": str(model), "max_total_tokens": 4096, "plugin": plugin, **changes})


def lend(page, number, for_ns=FOREVER_NS, kv_tokens=1 << 30):
    terms = LeaseTerms(number=number, compute_share=1.0, kv_budget_tokens=kv_tokens, regret_share=0.05)
    page.set_lease(dataclasses.replace(terms, expires_ns=monotonic_ns() + for_ns))


class StartedElsewhere(EngineProcess):
    alive = True


@pytest.fixture(scope="module")
def starting(tmp_path_factory, tiny_policy, fork_server):
    """An engine of two tensor-parallel ranks, not waited for: (page, engine, its starter)."""
    folder = tmp_path_factory.mktemp("sharded")
    cores = sorted(os.sched_getaffinity(0))
    page, spec = make_spec(
        folder,
        tiny_policy,
        gated=False,
        extra_args=["--tp-size=2", EXACT],
        environment={"OMP_NUM_THREADS": "1", "SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}", **ENVIRONMENT},
        fork_server=fork_server.path,
    )
    (folder / "spec").write_bytes(pickle.dumps(spec))
    script = f"""
import pickle, time
from pathlib import Path
from rose.runtime.engines.sglang import EngineProcess
engine = EngineProcess(pickle.loads(Path({str(folder / "spec")!r}).read_bytes()))
engine.launch()
print(engine.pid, flush=True)
engine.wait_ready()
print("ready", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    parent.group = int(parent.stdout.readline())
    yield page, StartedElsewhere(spec), parent
    parent.kill()
    parent.wait()


@pytest.fixture(scope="module")
def both(tmp_path_factory, tiny_policy, starting, fork_server):
    page, spec = make_spec(
        tmp_path_factory.mktemp("engine"), tiny_policy, fork_server=fork_server.path, extra_args=[EXACT]
    )
    engine = EngineProcess(spec)
    lend(page, 1)
    engine.launch()
    engine.wait_ready()
    assert starting[2].stdout.readline().strip() == "ready"
    yield (page, engine), starting
    engine.stop()


@pytest.fixture(scope="module")
def running(both):
    return both[0]


@pytest.fixture
def serving(running):
    page = ArbiterPage.attach(running[0].path, Party.SERVING)
    page.set_load(IDLE)
    yield page
    page.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)
    page.close()


@pytest.fixture
def lent(running, serving):
    return running


def answering(engine, tokens, **more):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(generate(engine, tokens, **more)))
    thread.start()
    return thread, answers


@pytest.fixture(scope="module")
def sharded(both):
    return both[1]


def generate(engine, tokens=8, prompt=(1, 2, 3), made=0, **more):
    """The last `made` tokens of the prompt were made by an earlier attempt."""
    sampling = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0, "custom_params": {EARLIER: made}}
    # A busy host computes slowly.
    return engine.post("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **more}, timeout_s=150)


def cached(engine, prompt, **more):
    return generate(engine, 1, prompt, **more)["meta_info"]["cached_tokens"]


@contextmanager
def generating(page, engine, prompt):
    spans_before = page.drain(Party.ROLLOUT, 0)[1]

    def steps():
        return page.drain(Party.ROLLOUT, 0)[1] - spans_before

    thread, answers = answering(engine, 1900, prompt=prompt, made=2, rid="generating")
    until(lambda: steps() >= 3)
    yield answers
    steps_before = steps()
    until(lambda: steps() >= steps_before + 3)
    engine.post("/generate", question("end", "generating"), timeout_s=60)
    thread.join(60)


def publish_steps(folder, policy, count, **more):
    weights = Policy.load(policy).weights()
    store = ShardedStore(folder, **more) if more else VersionStore(folder)
    store.publish(0, weights)
    for version in range(1, count + 1):
        weights = {
            name: (tensor.float() + (torch.rand(tensor.shape) < 0.02) * 0.01).to(tensor.dtype)
            for name, tensor in weights.items()
        }
        store.publish(version, weights)
    return store


def check_a_sync_under_a_request(page, engine, sync, url):
    prompt, other, stale = list(range(1, 41)), [91, 92, 93], {"extra_key": "v1"}
    assert cached(engine, prompt) == cached(engine, prompt, **stale) == 0
    assert cached(engine, prompt) == cached(engine, prompt, **stale) == 39
    with generating(page, engine, other) as answers:
        event = sync.bring(Target("", 2, url))
    assert event.ok, event.reason
    assert event.base_version == 1
    first, second = answers[0]["meta_info"]["weight_versions"]
    assert (first["version"], second["version"]) == ("1", "2")
    assert 0 == first["start"] < first["end"] == second["start"] < second["end"] == len(answers[0]["output_ids"])
    # Neither what version 1 computed, nor what it and version 2 computed together, whatever key a client sends.
    assert cached(engine, prompt) == cached(engine, prompt, **stale) == 0
    assert cached(engine, [*other, *answers[0]["output_ids"]]) == 0
    assert cached(engine, prompt) == cached(engine, prompt, **stale) == 39


def check_a_drift(engine, sync):
    assert sync.audit() is None
    prompt = list(range(50, 90))
    before = generate(engine, 8, prompt)["output_ids"]
    engine.post("/weights_checker", {"action": "reset_tensors"})
    event = sync.audit()
    assert event.reason.startswith("drift: tensor ")
    assert (event.ok, event.source, event.policy_version) == (False, "audit", 2)
    assert sync.bring_back().ok
    assert sync.audit() is None
    assert sync.standing.trusted
    # Nor is anything matched that the drifted weights computed, although the version's number is the same.
    answer = generate(engine, 8, prompt)
    assert (answer["output_ids"], answer["meta_info"]["cached_tokens"]) == (before, 0)


def test_it_generates_and_accounts_for_its_steps(lent):
    page, engine = lent
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


def test_an_unrenewed_lease_ends_by_itself_and_turns_keep_their_tokens(lent):
    page, engine = lent
    lend(page, 5, for_ns=300_000_000)
    answer = generate(engine, 1500, return_logprob=True)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < 1500
    assert len(answer["meta_info"]["output_token_logprobs"]) == len(answer["output_ids"])
    time.sleep(1.2)  # an idle engine looks up once a second
    assert page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) == 0


def test_a_running_step_yields_while_serving_wants_the_device(lent, serving):
    page, engine = lent
    lend(page, 6)
    thread, answers = answering(engine, 400)
    time.sleep(0.3)
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    serving.set_load(dataclasses.replace(IDLE, wanted=True))
    time.sleep(0.1)
    quiet_from = monotonic_ns()
    time.sleep(0.5)
    quiet_until = monotonic_ns()
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)
    serving.set_load(IDLE)
    thread.join(30)
    assert len(answers[0]["output_ids"]) == 400
    worked = [span for span in page.drain(Party.ROLLOUT, 0)[0] if span.kind is Span.ROLLOUT]
    assert not [span for span in worked if span.start_ns < quiet_until and span.end_ns > quiet_from]


@pytest.mark.parametrize("ends", ["lease", "serving"])
def test_a_step_that_gave_way_is_given_up_when_it_is_not_to_be_finished(lent, serving, ends):
    page, engine = lent
    expected = generate(engine, 400)["output_ids"] if lend(page, 7) is None else []
    thread, answers = answering(engine, 1500)
    time.sleep(0.3)
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    serving.set_load(dataclasses.replace(IDLE, wanted=True))
    time.sleep(0.1)
    if ends == "lease":
        page.set_lease(LeaseTerms(number=7))
    else:
        serving.close()
        page.set_lease(LeaseTerms(number=7))
    thread.join(10)
    kept = answers[0]["output_ids"]
    assert answers[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert kept[:50] == expected[: len(kept)][:50]
    if ends == "serving":
        serving = ArbiterPage.attach(page.path, Party.SERVING)
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)
    serving.set_load(IDLE)
    lend(page, 8)
    assert generate(engine, 400)["output_ids"] == expected
    serving.close()


@pytest.mark.long
def test_a_budget_that_turns_outgrow_never_hangs_them(lent):
    page, engine = lent
    lend(page, 9, kv_tokens=700)
    under_way = [answering(engine, 300, prompt=[index + 1] * 40) for index in range(8)]
    most = 0
    while any(thread.is_alive() for thread, _ in under_way):
        most = max(most, page.get(Party.ROLLOUT, Field.KV_TOKENS_USED))
        time.sleep(0.005)
    ended = [answers[0] for _, answers in under_way]
    assert all(answer["meta_info"]["finish_reason"]["type"] in ("length", "abort") for answer in ended)
    assert [answer for answer in ended if len(answer.get("output_ids", [])) == 300]
    assert most <= 700


def test_serving_that_grows_takes_half_the_budget_and_the_oldest_turns_go_on(lent, serving):
    page, engine = lent
    lend(page, 10, kv_tokens=3000)
    under_way = [answering(engine, 500, prompt=[index + 1] * 200) for index in range(5)]
    deadline = time.monotonic() + 20
    while page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) < 1600 and time.monotonic() < deadline:
        time.sleep(0.005)
    serving.set(Party.SERVING, Field.KV_TOKENS_USED, 8000)
    while page.cut() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    cut = page.cut()
    assert (cut.lease_number, cut.tokens_before, cut.tokens_after) == (10, 3000, 1500)
    assert cut.requests >= 1
    assert cut.bytes_returned > 0
    assert page.get(Party.ROLLOUT, Field.KV_TOKENS_USED) <= 1500
    for thread, _ in under_way:
        thread.join(30)
    lengths = [len(answers[0].get("output_ids", [])) for _, answers in under_way]
    assert 500 in lengths, "those that fit go on to their end"
    assert min(lengths) < 500, "those that do not come back with what they have"
    assert all(answers[0]["meta_info"]["finish_reason"]["type"] in ("length", "abort") for _, answers in under_way)


def test_it_goes_from_version_to_version_by_verified_deltas(lent, tiny_policy, tmp_path):
    page, engine = lent
    lend(page, 12)
    sync = EngineSync(engine, engine.spec.plugin.staging, device_id="d0")
    with StoreServer(publish_steps(tmp_path / "store", tiny_policy, 2)) as server:
        for version in (1, 2):
            event = sync.bring(Target("", version, server.url))
            assert event.ok, event.reason
            assert (event.encoding, event.base_version) == ("delta", version - 1)
            assert event.wire_bytes < event.dense_bytes / 4
            assert event.pause_ns > 0
        assert sync.version == 2
        answer = generate(engine, 4)
        assert [span["version"] for span in answer["meta_info"]["weight_versions"]] == ["2"]

        stray = EngineSync(engine, engine.spec.plugin.staging, device_id="d0")
        event = stray.bring(Target("", 2, server.url))
        assert event.ok, event.reason
        assert event.base_version is None


def test_a_request_goes_on_across_a_sync_and_a_drift_is_undone(lent, tiny_policy, tmp_path):
    page, engine = lent
    lend(page, 13)
    sync = EngineSync(engine, engine.spec.plugin.staging, device_id="d0")
    with StoreServer(publish_steps(tmp_path / "store", tiny_policy, 2)) as server:
        assert sync.bring(Target("", 1, server.url)).ok
        check_a_sync_under_a_request(page, engine, sync, server.url)
        check_a_drift(engine, sync)


def test_two_ranks_do_all_that_as_one(sharded, lent, tiny_policy, tmp_path):
    page, engine, _ = sharded
    shape = PolicyShape()
    weights = Policy.load(tiny_policy).weights()
    model = ModelShape(
        {name: tuple(tensor.shape) for name, tensor in weights.items()},
        num_heads=shape.num_attention_heads,
        num_kv_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
    )
    sync = EngineSync(engine, engine.spec.plugin.staging, device_id="d1")
    with StoreServer(publish_steps(tmp_path / "store", tiny_policy, 2, tp=2, model=model)) as server:
        event = sync.bring(Target("", 1, server.url))
        assert (event.ok, event.base_version) == (True, 0), event.reason
        assert sync.version == 1
        check_a_sync_under_a_request(page, engine, sync, server.url)
        check_a_drift(engine, sync)
        lend(lent[0], 14)
        alone = EngineSync(lent[1], lent[1].spec.plugin.staging, device_id="d0")
        assert alone.bring(Target("", 2, server.url)).ok
    prompt = [5, 6, 7, 8]
    assert generate(engine, 16, prompt)["output_ids"] == generate(lent[1], 16, prompt)["output_ids"]


MOVES = "( UP| DOWN| LEFT| RIGHT)"
BOARD = [vocabulary.BOS, *range(20, 60)]
LONG = {"regex": f"{MOVES}{{99}}"}


def sampled(engine, made=(), **sampling):
    sampling = {"max_new_tokens": 16, "temperature": 0, "custom_params": {EARLIER: len(made)}} | sampling
    body = {"input_ids": [*BOARD, *made], "sampling_params": sampling, "return_logprob": True}
    answer = engine.post("/generate", body, timeout_s=150)
    tokens, meta = answer["output_ids"], answer["meta_info"]
    logprobs = meta["output_token_logprobs"]
    assert [token for _, token, _ in logprobs] == tokens
    assert [(span["start"], span["end"]) for span in meta["weight_versions"]] == [(0, len(tokens))]
    return tokens, [logprob for logprob, _, _ in logprobs], meta["finish_reason"]


@pytest.mark.parametrize(
    ("end", "sampling"),
    [
        ("length", {"ignore_eos": True}),
        ("stop", {"regex": f"({MOVES} WALL){{5}} GOAL"}),
        ("length", {**LONG, "frequency_penalty": 0.4}),
        ("length", {**LONG, "presence_penalty": 1.5, "repetition_penalty": 1.3}),
        ("stop", {"min_new_tokens": 6, "logit_bias": {str(vocabulary.EOT): 100.0}}),
        ("stop", {**LONG, "frequency_penalty": 0.4, "stop": None}),
        ("stop", {**LONG, "frequency_penalty": 0.4, "stop_regex": None}),
    ],
    ids=["nothing", "grammar", "frequency", "presence", "minimum", "stop", "stop_regex"],
)
def test_a_turn_that_moves_keeps_the_meaning_of_its_parameters(lent, sharded, end, sampling):
    page, engine = lent
    lend(page, 15)
    for name in {"stop", "stop_regex"} & set(sampling):
        moves, *_ = sampled(engine, **sampling)
        sampling = {**sampling, name: " ".join(vocabulary.NAMES[token] for token in moves[2:8])}
    tokens, logprobs, finish = sampled(engine, **sampling)
    assert finish["type"] == end
    assert len(tokens) > 5
    for made in range(1, len(tokens)):
        other = (engine, sharded[1])[made // 2 % 2]
        rest, rest_logprobs, rest_finish = sampled(other, tokens[:made], **sampling)
        assert (rest, rest_finish) == (tokens[made:], finish)
        assert rest_logprobs == pytest.approx(logprobs[made:], abs=1e-3)


def test_earlier_tokens_that_the_grammar_refuses_are_refused(lent):
    page, engine = lent
    lend(page, 16)
    with pytest.raises(urllib.error.HTTPError) as refused:
        sampled(engine, [vocabulary.WALL], **LONG)
    assert refused.value.code == 400
    assert len(sampled(engine, **LONG)[0]) == 16


def test_a_request_whose_grammar_is_compiled_without_a_lease_begins_no_step(lent):
    page, engine = lent
    page.set_lease(LeaseTerms(number=16))
    began = monotonic_ns()
    body = {"input_ids": BOARD, "sampling_params": {"regex": f"{MOVES}{{98}}"}}
    assert engine.post("/generate", body, timeout_s=60)["meta_info"]["finish_reason"]["type"] == "abort"
    assert not [
        span for span in page.drain(Party.ROLLOUT, 0)[0] if span.start_ns >= began and span.kind is Span.ROLLOUT
    ]


async def test_a_turn_is_made_as_if_it_had_never_moved(lent, sharded, monkeypatch):
    page, engine = lent
    lend(page, 17)
    sampling = {"regex": f"({MOVES} WALL){{200}} GOAL", "max_new_tokens": 500}
    whole, *_ = await asyncio.to_thread(sampled, engine, **sampling)
    monkeypatch.setattr(turns, "AVOID_NS", FOREVER_NS)  # Or until the engine has another lease.
    urls, moves = {"e0": engine.url, "e1": sharded[1].url}, [("e0", 50), ("e1", 150), ("e0", 300)]
    async with play() as run:

        async def beat():
            await run.beat(*(run.report(url, name, lease_id=f"{name}-{len(moves)}") for name, url in urls.items()))

        await beat()
        made = 0
        async for part in run.stream(BOARD, sampling | {"temperature": 0}):
            made += len(part.output_ids)
            if moves and made > moves[0][1]:
                await post(run.session, "/preempt", {"engine_id": moves.pop(0)[0], "reason": "test"})
                await beat()
    assert part.generation.output_ids == whole
    assert len(whole) == 402
    worked = [attempt.engine_id for attempt in part.generation.attempts if attempt.output_tokens]
    assert sorted(set(worked)) == ["e0", "e1"]


def test_stopping_leaves_no_process(running, gone):
    """Last of those that share the engine: it ends it."""
    _, engine = running
    engine.stop()
    assert gone(engine.pid) == []
    assert not engine.alive
    engine.stop()


def test_an_engine_dies_with_the_process_that_started_it(sharded, gone):
    """Last of those that share the engine of two ranks: it ends it."""
    _, _, parent = sharded
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert gone(parent.group) == []
