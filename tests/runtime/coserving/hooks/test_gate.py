import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks import gate as gates
from rose.runtime.coserving.hooks.gate import RolloutGate, add_layer_hooks
from rose.runtime.coserving.hooks.telemetry import RolloutTelemetry
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.scheduler import SchedulerView, StepAbandonedError
from rose.runtime.policy.slack import Budgets, Hold, LeaseTerms
from tests.runtime.coserving.lending import MEMORY, PoolMemory, lease
from tests.runtime.coserving.made_scheduler import Batch, Request, Scheduler
from tests.runtime.loads import IDLE

MS = 1_000_000
LOAD = replace(IDLE, finished=1)


class View(SchedulerView):
    def __init__(self, scheduler):
        super().__init__(scheduler)
        self.ended = []

    def end(self, requests):
        for request in requests:
            request.ended = True
            self.ended.append(request.rid)
        scheduler = self._scheduler
        scheduler.waiting_queue = [request for request in scheduler.waiting_queue if not request.ended]
        scheduler.running_batch.reqs = [request for request in scheduler.running_batch.reqs if not request.ended]
        return len(requests), sum(len(request.output_ids) for request in requests)

    def evict(self, tokens):
        pass


def gate_of(engine, view, telemetry, run_ahead):
    return RolloutGate(
        engine,
        view,
        telemetry,
        KvGuard(engine, view, PoolMemory()),
        chunk_tokens=512,
        set_chunk_tokens=lambda tokens: None,
        layers=4,
        run_ahead=run_ahead,
        on_preemptible=lambda: None,
    )


@pytest.fixture
def device(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.set_terms(Budgets(1000 * MS, 1000 * MS), 64, replace(MEMORY, device_bytes=4000))
    serving = ArbiterPage.attach(page.path, Party.SERVING)
    serving.set_load(LOAD)
    engine = ArbiterPage.attach(page.path, Party.ROLLOUT)
    scheduler = Scheduler(running_batch=Batch([Request("r0"), Request("r1")], "decode"))
    view = View(scheduler)
    telemetry = RolloutTelemetry(view, engine)
    gate = gate_of(engine, view, telemetry, None)
    return SimpleNamespace(page=page, serving=serving, scheduler=scheduler, view=view, telemetry=telemetry, gate=gate)


def lend(device, *, seconds=60.0, policy="rose", kv=4000):
    device.page.set_lease(lease(kv, seconds=seconds, policy=policy))


def asks(device, control=lambda: None, paused=lambda: False):
    device.gate.before_step(paused, control)


def in_lent_step(device, **terms):
    lend(device, **terms)
    asks(device)
    device.telemetry.begin(1)
    device.gate.step_begins()


def spans(device, kind):
    return [span for span in device.page.drain(Party.ROLLOUT, 0)[0] if span.kind is kind]


def test_without_a_lease_turns_go_elsewhere_at_once_with_what_they_have(device):
    device.scheduler.waiting_queue = [Request("waiting")]
    asks(device)
    assert sorted(device.view.ended) == ["r0", "r1", "waiting"]
    assert spans(device, Span.HELD) == [], "what was not lent was not refused"


def test_a_held_step_serves_control_and_says_why_for_how_long(device):
    lend(device)
    device.serving.set_load(replace(LOAD, wanted=True))
    asked = []

    def control():
        asked.append(1)
        if len(asked) == 3:
            device.serving.set_load(replace(LOAD, largest_prefill_ns=2000 * MS))
        if len(asked) == 6:
            device.serving.set_load(LOAD)

    asks(device, control)
    assert [Hold(span.aux) for span in spans(device, Span.HELD)] == [Hold.SERVING_STEP, Hold.NEXT_REQUEST]
    assert len(asked) == 6


def test_a_request_that_was_given_up_while_held_goes_at_once(device):
    lend(device)
    device.serving.set_load(replace(LOAD, wanted=True))

    def control():
        for request in device.scheduler.running_batch.reqs:
            request.to_finish = "aborted"

    asks(device, control)
    assert sorted(device.view.ended) == ["r0", "r1"]


@pytest.mark.parametrize("how", ["killed", "broken"])
def test_nothing_runs_beside_serving_that_is_gone(device, how, monkeypatch):
    monkeypatch.setattr(gates, "STALL_NS", 20 * MS)
    lend(device)
    if how == "killed":
        device.serving.close()
    else:
        device.serving.set(Party.SERVING, Field.BROKEN, 1)
    asks(device)
    assert {Hold(span.aux) for span in spans(device, Span.HELD)} == {Hold.NO_SERVING}


def test_a_running_step_gives_way_between_layers_and_goes_on(device):
    in_lent_step(device)
    device.gate.between_layers(4)
    device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    threading.Timer(0.05, lambda: device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)).start()
    device.gate.between_layers(3)
    (given_way,) = spans(device, Span.YIELD)
    assert given_way.aux == 3
    assert given_way.latency_ns > 0
    assert device.telemetry.waited_ns == given_way.end_ns - given_way.start_ns
    (before,) = spans(device, Span.ROLLOUT)
    assert before.end_ns == given_way.start_ns
    assert device.page.get(Party.ROLLOUT, Field.WORKED_NS) == before.end_ns - before.start_ns


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda device: device.page.set_lease(LeaseTerms(number=1)), "the lease ended"),
        (lambda device: device.serving.close(), "serving is gone"),
        (lambda device: device.serving.set(Party.SERVING, Field.KV_TOKENS_USED, 3900), "serving needs the memory"),
        (lambda device: None, "serving kept the device"),
    ],
)
def test_a_step_that_gave_way_is_given_up_when_it_is_not_to_be_finished(device, change, why, monkeypatch):
    if why == "serving kept the device":
        monkeypatch.setattr(gates, "STALL_NS", 20 * MS)
    in_lent_step(device)
    device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    threading.Timer(0.03, change, [device]).start()
    with pytest.raises(StepAbandonedError, match=why):
        device.gate.between_layers(3)


def test_a_step_whose_memory_serving_needs_does_not_wait_to_be_given_up(device, monkeypatch):
    in_lent_step(device)
    device.serving.set(Party.SERVING, Field.KV_TOKENS_USED, 3900)
    device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    monkeypatch.setattr(gates.time, "sleep", lambda _: pytest.fail("it sleeps first"))
    with pytest.raises(StepAbandonedError, match="serving needs the memory"):
        device.gate.between_layers(3)


def test_a_policy_that_does_not_yield_runs_on(device):
    in_lent_step(device, policy="share_all")
    device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    device.gate.between_layers(3)
    assert spans(device, Span.YIELD) == []
    assert device.telemetry.disturbed, "a step beside one of serving's says nothing of how long it takes"


def test_a_wish_that_came_and_went_within_a_layer_ends_a_span(device):
    in_lent_step(device)
    # At once after the gate's look at the clocks: whatever takes the test's core from here on comes after the wish.
    device.serving.set(Party.SERVING, Field.FIRST_WANTED_NS, device.page.get(Party.ROLLOUT, Field.LOOKED_NS) + 1)
    time.sleep(0.05)
    device.gate.between_layers(3)
    (before,) = spans(device, Span.ROLLOUT)
    assert 0 < before.latency_ns < 45 * MS < before.end_ns - before.start_ns
    assert device.page.open(Party.ROLLOUT, monotonic_ns()).start_ns == before.end_ns
    device.gate.step_ended(before.start_ns)
    device.telemetry.end(1, device.scheduler.running_batch)
    assert spans(device, Span.ROLLOUT)[1].latency_ns == 0


def test_a_step_makes_a_token_for_each_request_whose_prompt_is_complete(device):
    in_lent_step(device)
    batch = device.scheduler.running_batch
    for request in batch.reqs:
        request.output_ids = [1]
    complete = len(batch.reqs)
    batch.reqs = [*batch.reqs, SimpleNamespace(origin_input_ids=[1, 2], output_ids=[])]
    device.telemetry.end(1, batch)
    assert device.page.get(Party.ROLLOUT, Field.TOKENS) == complete > 0


def test_time_that_the_system_took_the_core_away_is_a_yield_and_not_work(device):
    """A sleep stands for the core being taken: the clocks differ as they would."""
    in_lent_step(device)
    device.page.set(Party.ROLLOUT, Field.PREEMPTIBLE, 1)
    device.serving.set(Party.SERVING, Field.FIRST_WANTED_NS, monotonic_ns())
    time.sleep(0.05)
    device.gate.between_layers(3)
    (taken,) = spans(device, Span.YIELD)
    assert taken.end_ns - taken.start_ns > 40 * MS
    assert device.page.get(Party.ROLLOUT, Field.WORKED_NS) < 40 * MS
    assert device.telemetry.waited_ns == taken.end_ns - taken.start_ns


def gpu_gate(device, *, ahead=2):
    queue = SimpleNamespace(layers=ahead, before_layer=lambda: None, drain=lambda: None)
    return gate_of(device.gate._page, device.view, device.telemetry, queue)


def gpu_steps(device, gate, clock, *, layer_ns, rest_ns, count=10):
    for _ in range(count):
        gate.before_step(lambda: False, lambda: pytest.fail("held"))
        device.telemetry.begin(1)
        gate.step_begins()
        for left in range(gate._layers, 0, -1):
            gate.between_layers(left)
            clock.now_ns += layer_ns
        clock.now_ns += rest_ns
        gate.step_ended(clock.now_ns)
        device.telemetry.end(1, device.scheduler.running_batch)


@pytest.mark.parametrize("layers", [1, 2])
def test_serving_would_wait_for_as_many_layers_as_may_be_queued(device, layers):
    gate = gpu_gate(device, ahead=layers)
    for _ in range(10):
        device.telemetry.times = device.telemetry.times.observe_decode(2, 20, 4 * MS)
    lend(device)
    gate.before_step(lambda: False, lambda: None)
    step_ns, _ = device.telemetry.step_ns(512)
    assert device.page.get(Party.ROLLOUT, Field.PREEMPT_NS) == step_ns * layers // 4 > 0


def test_what_a_step_does_after_its_layers_is_no_wait_for_them_on_a_gpu(device, clock):
    gate = gpu_gate(device)
    device.serving.set_load(replace(LOAD, usual_prefill_ns=40 * MS, largest_prefill_ns=100 * MS))
    lend(device)
    gpu_steps(device, gate, clock, layer_ns=MS // 2, rest_ns=10 * MS)
    gate.before_step(lambda: False, lambda: pytest.fail("held"))
    assert device.page.get(Party.ROLLOUT, Field.PREEMPT_NS) == pytest.approx(2 * MS // 2, rel=0.01)
    assert device.telemetry.step_ns(512)[0] == pytest.approx(12 * MS, rel=0.01)


def test_every_layer_of_a_model_looks_at_the_page():
    looked = []
    layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    add_layer_hooks(SimpleNamespace(model=SimpleNamespace(layers=layers)), looked.append, after_last=True)
    value = torch.zeros(1, 2)
    for layer in layers:
        value = layer(value)
    assert looked == [3, 2, 1, 0], "what follows the layers may take longer than one"
    with pytest.raises(TypeError, match=r"has no `model\.layers`"):
        add_layer_hooks(SimpleNamespace(model=SimpleNamespace()), looked.append)
