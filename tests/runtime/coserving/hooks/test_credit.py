from dataclasses import replace
from types import SimpleNamespace

import pytest

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks import gate
from rose.runtime.coserving.hooks.serving import DETACH, ServingPlugin
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.coserving.scheduler import _ARRIVED
from rose.runtime.policy.credit import CONTROL_EVERY, LEARNED_STEPS
from rose.runtime.policy.slack import Budgets, Hold
from tests.runtime.coserving.hooks.test_gate import LOAD, asks, device, spans  # noqa: F401
from tests.runtime.coserving.lending import MEMORY, lease
from tests.runtime.coserving.made_scheduler import Batch, Loop, Request, Scheduler

MS = 1_000_000
STEP_NS = 10 * MS
#: Requests of priority 1 may wait for a token for little more than a step.
BUDGETS = Budgets(1000 * MS, 100 * MS, classes={0: Budgets(1000 * MS, 500 * MS), 1: Budgets(1000 * MS, 12 * MS)})


class Serving:
    """A serving engine with steps of 10 ms. Work beside them adds `factor` times its length."""

    def __init__(
        self, folder, clock, *, overlap, factor=1.3, priorities=(None, None), new_tokens=1000, on_cpu=False, **terms
    ):
        self.page = ArbiterPage.create(folder / "page")
        self.page.set_terms(BUDGETS, 64, replace(MEMORY, device_bytes=1 << 20))
        self.page.set_lease(lease(100, **{"stretch": 1.5, "slack_share": 1.0, **terms}))
        self.rollout = ArbiterPage.attach(self.page.path, Party.ROLLOUT)
        self.scheduler = Scheduler(max_total_num_tokens=1 << 20)
        if on_cpu:
            self.scheduler.device = "cpu"
        self.plugin = ServingPlugin(self.scheduler, self.page.path, None)
        self.plugin.received()
        self.loop = Loop(self.scheduler, self.plugin, overlap=overlap, work=self._work)
        self.clock, self.factor, self.spent = clock, factor, []
        # Several prefills, so that their time is known.
        for number in range(8):
            self.scheduler.waiting_queue = [Request(f"first {number}", new_tokens=8)]
            self.turns(12)
        self.scheduler.waiting_queue = [
            Request(f"r{number}", new_tokens=new_tokens, priority=priority)
            for number, priority in enumerate(priorities)
        ]
        self.turns(8)

    def _work(self):
        work_ns = max(0, self.page.credit_ns(self.clock.now_ns))
        self.spent.append(work_ns)
        self.rollout.set(Party.ROLLOUT, Field.WORK_NS, self.rollout.get(Party.ROLLOUT, Field.WORK_NS) + work_ns)
        self.clock.now_ns += STEP_NS + int(self.factor * work_ns)

    def turns(self, count):
        for _ in range(count):
            self.loop.turn()

    def say(self, field):
        return self.page.get(Party.SERVING, field)


@pytest.mark.parametrize("overlap", [False, True])
def test_serving_that_never_rests_gives_what_its_requests_may_take_longer(tmp_path, clock, overlap):
    serving = Serving(tmp_path, clock, overlap=overlap)
    before, delayed_ns, began_ns = serving.say(Field.STEPS), serving.say(Field.DELAYED_NS), clock.now_ns
    serving.spent = []
    serving.turns(400)
    assert len(serving.spent) == 400
    took_ns = clock.now_ns - began_ns
    assert 1.15 < took_ns / (400 * STEP_NS) < 1.51, "tokens take at most half as long again, less for first tokens"
    assert serving.say(Field.FACTOR_PPM) / 1e6 == pytest.approx(1.3, rel=0.1)
    assert serving.say(Field.DELAYED_NS) - delayed_ns == pytest.approx(1.3 * sum(serving.spent), rel=0.1)
    learned = serving.say(Field.STEPS) - before
    controls, longer = 400 // CONTROL_EVERY, 8  # The requests' contexts grow beyond what was learned so many times.
    assert controls - 2 <= learned <= controls + longer + 2, "one step in so many tells what it takes"
    assert serving.page.serving_load().decode_ns == pytest.approx(STEP_NS, rel=0.02)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("priorities", [(0, 0), (0, None), (0, 7), (1, 1), (0, 1), (1, None)])
def test_the_credit_is_limited_by_the_budget_of_each_live_request_s_class(tmp_path, clock, overlap, priorities):
    serving = Serving(tmp_path, clock, overlap=overlap, priorities=priorities)
    serving.spent = []
    serving.turns(2 * CONTROL_EVERY)
    tight = 1 in priorities
    assert serving.say(Field.CREDIT_LIMIT) == (Hold.DECODE_SLACK if tight else Hold.STRETCH)
    assert any(serving.spent)
    assert (serving.factor * max(serving.spent) <= 2 * MS) is tight


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("terms", [{"stretch": 1.0}, {"slack_share": 0.0}, {"seconds": -1.0}])
def test_nothing_is_given_where_nothing_may_be(tmp_path, clock, overlap, terms):
    serving = Serving(tmp_path, clock, overlap=overlap, **terms)
    serving.turns(100)
    assert not any(serving.spent)


@pytest.mark.parametrize(("stretch", "gives"), [(1.5, False), (100.0, True)])
def test_steps_before_a_first_token_is_known_give_only_if_stretch_has_no_limit(tmp_path, clock, stretch, gives):
    """On CPU cores, the overlap schedule computes a decode step before it processes the prefill."""
    serving = Serving(tmp_path, clock, overlap=True, priorities=[None] * 8, on_cpu=True, stretch=stretch)
    serving.turns(LEARNED_STEPS)
    serving.scheduler.waiting_queue = [Request("late", new_tokens=1000)]
    serving.spent = []
    serving.turns(2)
    assert [spent > 0 for spent in serving.spent] == [gives, gives]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("stretch", "stops"), [(1.5, True), (100.0, False)])
def test_a_request_that_waits_and_its_prefill_end_the_credit_unless_stretch_has_no_limit(
    tmp_path, clock, overlap, stretch, stops
):
    serving = Serving(tmp_path, clock, overlap=overlap, stretch=stretch)
    serving.turns(LEARNED_STEPS)
    serving.scheduler.waiting_queue = [Request("late", new_tokens=1000)]
    serving.page.set(Party.SERVING, Field.CREDIT_NS, serving.rollout.get(Party.ROLLOUT, Field.WORK_NS) + MS)
    serving.page.set(Party.SERVING, Field.CREDIT_UNTIL_NS, clock.now_ns + MS)
    assert serving.page.credit_ns(clock.now_ns) == MS
    serving.plugin.received()
    assert serving.page.credit_ns(clock.now_ns) == (0 if stops else MS)
    serving.spent = []
    serving.turns(1)
    assert (serving.spent == [0]) is stops
    assert (serving.say(Field.CREDIT_LIMIT) == Hold.SERVING_STEP) is stops
    serving.turns(10)
    assert any(serving.spent[-5:])


@pytest.mark.parametrize(("priority", "gives"), [(None, True), (1, False)])
def test_a_prefill_gives_what_the_requests_behind_it_can_wait(tmp_path, clock, priority, gives):
    """A live request waits for the prefill and for the decode step after it."""
    serving = Serving(tmp_path, clock, overlap=False, priorities=(priority, None), stretch=100.0)
    serving.turns(LEARNED_STEPS)
    serving.scheduler.waiting_queue = [Request("late", new_tokens=1000)]
    serving.spent = []
    serving.turns(1)
    assert [spent > 0 for spent in serving.spent] == [gives]
    assert serving.say(Field.CREDIT_LIMIT) == Hold.DECODE_SLACK


def test_nothing_is_given_while_a_request_waits_for_a_slot(tmp_path, clock):
    serving = Serving(tmp_path, clock, overlap=False, stretch=100.0)
    serving.turns(CONTROL_EVERY)
    serving.scheduler.full = True
    serving.scheduler.waiting_queue = [Request("late", new_tokens=1000)]
    serving.spent = []
    serving.turns(CONTROL_EVERY)
    assert not any(serving.spent)


@pytest.mark.parametrize(("tokens", "limit"), [(6, Hold.SERVING_STEP), (10, Hold.DECODE_SLACK)])
def test_only_the_last_chunk_of_a_prompt_gives(tmp_path, clock, tokens, limit):
    serving = Serving(tmp_path, clock, overlap=False, stretch=100.0)
    serving.turns(CONTROL_EVERY)
    late = Request("late", prompt=10, new_tokens=1000)
    serving.plugin.begin(Batch([late], "extend", extend_num_tokens=tokens, extend_lens=[tokens], prefix_lens=[0]))
    assert (serving.page.credit_ns(clock.now_ns) > 0) is (tokens == 10)
    assert serving.say(Field.CREDIT_LIMIT) == limit


def test_a_first_token_that_waited_for_a_longer_step_is_late_by_lending(tmp_path, clock):
    serving = Serving(tmp_path, clock, overlap=False, stretch=100.0)
    serving.turns(LEARNED_STEPS)
    assert serving.spent[-1] > 20 * MS
    late = Request("late", new_tokens=1)
    setattr(late, _ARRIVED, clock.now_ns - 995 * MS)  # As the last step began; most of the wait came before the server.
    serving.scheduler.waiting_queue = [late]
    serving.turns(3)
    load = serving.page.serving_load()
    assert (load.late_by_lending, load.late_alone) == (1, 0)


def test_memory_that_serving_may_need_ends_the_credit(tmp_path, clock):
    serving = Serving(tmp_path, clock, overlap=True)
    serving.turns(10)
    serving.scheduler.held = int(serving.scheduler.max_total_num_tokens / 1.4)
    serving.turns(2)
    serving.spent = []
    serving.turns(CONTROL_EVERY)
    assert not any(serving.spent)
    assert serving.say(Field.CREDIT_LIMIT) == Hold.SERVING_MEMORY


def test_serving_that_lets_go_takes_its_credit_back(tmp_path, clock):
    serving = Serving(tmp_path, clock, overlap=True)
    for _ in range(CONTROL_EVERY):
        serving.loop.turn()
        if serving.page.credit_ns(clock.now_ns) > 0:
            break
    serving.plugin.attach(DETACH)
    assert serving.page.credit_ns(clock.now_ns) <= 0


def test_a_third_process_on_the_device_ends_the_credit(tmp_path, clock):
    serving = Serving(tmp_path, clock, overlap=True)
    for others, limit in ((1, Hold.INTERFERENCE), (0, Hold.STRETCH)):
        serving.page.set(Party.AGENT, Field.OTHERS, others)
        serving.turns(2)
        serving.spent = []
        serving.turns(8)
        assert any(serving.spent) is not bool(others)
        assert serving.say(Field.CREDIT_LIMIT) == limit


def give(device, work_ns, *, for_ns=10_000 * MS):  # noqa: F811
    serving = device.serving
    serving.set(Party.SERVING, Field.CREDIT_UNTIL_NS, monotonic_ns() + for_ns)
    serving.set(Party.SERVING, Field.CREDIT_NS, device.page.get(Party.ROLLOUT, Field.WORK_NS) + work_ns)


@pytest.fixture
def busy(device):  # noqa: F811
    device.page.set_lease(lease(4000, stretch=1.25, slack_share=1.0))
    device.serving.set_load(replace(LOAD, wanted=True))
    device.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, monotonic_ns())
    for _ in range(8):
        device.telemetry.times = device.telemetry.times.observe_decode(2, 20, 8 * MS)
    return device


def begins(device):  # noqa: F811
    device.gate.step_begins()
    device.telemetry.begin(1)


def work_of(device):  # noqa: F811
    return device.page.get(Party.ROLLOUT, Field.WORK_NS)


def test_a_step_runs_beside_serving_while_its_credit_lasts_and_its_work_is_counted(busy):
    give(busy, 100 * MS)
    asks(busy)
    begins(busy)
    for left in (4, 3, 2, 1):
        busy.gate.between_layers(left)
    assert 2 * MS <= work_of(busy) <= 4 * MS, "a layer before it begins; its thread's clock corrects it after"
    busy.gate.step_ended(monotonic_ns())
    busy.telemetry.end(1, SimpleNamespace(reqs=[], forward_mode=busy.scheduler.running_batch.forward_mode))
    (span,) = spans(busy, Span.BESIDE)
    assert 0 < span.aux <= work_of(busy)
    assert spans(busy, Span.ROLLOUT) == spans(busy, Span.YIELD) == []
    assert busy.page.get(Party.ROLLOUT, Field.WORKED_NS) == 0, "serving counts that as time it could not use"


def test_a_step_waits_for_the_next_credit_and_goes_on_in_it(busy, monkeypatch):
    give(busy, 100 * MS)
    asks(busy)
    begins(busy)
    busy.gate.between_layers(4)
    give(busy, 0)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 3:
            give(busy, 100 * MS)

    monkeypatch.setattr(gate.time, "sleep", sleep)
    busy.gate.between_layers(3)
    assert len(looks) == 3
    assert busy.page.open(Party.ROLLOUT, monotonic_ns()).kind is Span.BESIDE
    busy.serving.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)
    busy.gate.between_layers(2)
    assert busy.page.open(Party.ROLLOUT, monotonic_ns()).kind is Span.ROLLOUT
    assert [len(spans(busy, kind)) for kind in (Span.BESIDE, Span.YIELD)] == [2, 1]


@pytest.mark.parametrize("how", ["spent", "out of date", "none"])
def test_no_step_begins_without_a_credit(busy, how):
    if how != "none":
        give(busy, 100 * MS if how == "out of date" else 3 * MS, for_ns=-1 if how == "out of date" else 10_000 * MS)
    busy.serving.set(Party.SERVING, Field.CREDIT_LIMIT, Hold.STRETCH)
    asked = []

    def control():
        asked.append(1)
        if len(asked) == 2:
            give(busy, 4 * MS)

    asks(busy, control)
    assert len(asked) == 2
    (held,) = spans(busy, Span.HELD)
    assert Hold(held.aux) is Hold.STRETCH, "the ledger says what limits lending beside serving"
