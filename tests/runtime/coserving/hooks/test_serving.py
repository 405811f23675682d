import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import zmq

from rose.clock import monotonic_ns
from rose.runtime.coserving.attachment import EngineState, described, detached_note
from rose.runtime.coserving.hooks.serving import DETACH, RELEASE, ServingPlugin
from rose.runtime.coserving.kv import memory
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.policy.slack import Budgets, LeaseTerms, attainable
from tests.runtime.conftest import until
from tests.runtime.coserving.hooks.conftest import BUDGET_NS, SHARED
from tests.runtime.coserving.lending import cut_record, lease
from tests.runtime.coserving.made_scheduler import Batch, Loop, Request, Scheduler

LEASE_NS = 60_000_000_000
MS = 1_000_000


def lend(page, regret_share=0.5, policy="rose"):
    page.set_lease(lease(seconds=60.0, regret_share=regret_share, policy=policy))


def attached(page, scheduler=None):
    plugin = ServingPlugin(scheduler or Scheduler(), page.path, None)
    plugin.received()
    return plugin


def looks_now(plugin):
    plugin._looked_ns = 0
    plugin.received()


class Serving:
    def __init__(self, page, *, overlap=False, work=lambda: None):
        self.page, self.scheduler = page, Scheduler()
        self.plugin = attached(page, self.scheduler)
        self.loop = Loop(self.scheduler, self.plugin, overlap=overlap, work=work)

    def serve(self, *requests, turns=12):
        self.scheduler.waiting_queue += requests
        for _ in range(turns):
            self.loop.turn()

    @property
    def records(self):
        records, _, lost = self.page.drain_requests(0)
        assert lost == 0
        return records

    @property
    def in_flight(self):
        return self.page.get(Party.SERVING, Field.IN_FLIGHT)


def served(page, scheduler, *, overlap, requests=3, turns=12, work=lambda: time.sleep(0.001), new_tokens=4):
    plugin = attached(page, scheduler)
    loop = Loop(scheduler, plugin, overlap=overlap, work=work)
    scheduler.waiting_queue = [Request(f"r{index}", new_tokens=new_tokens) for index in range(requests)]
    wanted = []
    for _ in range(turns):
        loop.turn()
        wanted.append(bool(page.serving_wants()))
    return plugin, wanted


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_are_paired_whether_or_not_results_come_in_copies(page, overlap):
    lend(page)
    _, wanted = served(page, Scheduler(), overlap=overlap)
    load = page.serving_load()
    assert (load.finished, load.running, load.waiting, load.wanted) == (3, 0, 0, False)
    # Between two steps rollouts may have the device, as long as nobody is delayed by more than their share.
    assert wanted[0] is overlap
    assert not wanted[-1], "the device is let go once the last result is known"
    spans, _, lost = page.drain(Party.SERVING, 0)
    assert lost == 0
    assert page.open(Party.SERVING, monotonic_ns()) is None
    assert {span.kind for span in spans} == {Span.SERVING}
    # Running ahead, SGLang begins one step more before it learns that its requests have ended.
    assert page.get(Party.SERVING, Field.STEPS) == (5 if overlap else 4)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("share", "learned"), [(0.25, 4), (0.75, 0)])
def test_steps_that_rollouts_shared_for_more_than_half_teach_nothing(page, clock, overlap, share, learned):
    lend(page, policy="share_all")

    def work():
        clock.now_ns += 10 * MS
        page.set(Party.ROLLOUT, Field.WORKED_NS, page.get(Party.ROLLOUT, Field.WORKED_NS) + int(share * 10 * MS))

    served(page, Scheduler(), overlap=overlap, work=work)
    assert page.serving_load().finished == 3
    assert page.get(Party.SERVING, Field.STEPS) == learned


def test_a_step_that_was_launched_ahead_is_charged_with_what_rollouts_took_of_its_own_time(page, clock):
    lend(page)

    def work():
        clock.now_ns += 10 * MS
        page.set(Party.ROLLOUT, Field.WORKED_NS, page.get(Party.ROLLOUT, Field.WORKED_NS) + 4 * MS)

    plugin, _ = served(page, Scheduler(), overlap=True, turns=24, requests=1, work=work, new_tokens=20)
    assert plugin._telemetry.times.decode_ns(1, 20) == pytest.approx(6 * MS, rel=0.01)


@pytest.mark.parametrize("overlap", [False, True])
def test_without_a_gpu_a_step_takes_as_long_as_its_launch(page, clock, overlap):
    """The launch computes it, and with the overlap schedule the step before it is processed only then."""
    scheduler = Scheduler()
    scheduler.device = "cpu"
    lengths_ns = {"extend": 30 * MS, "decode": 10 * MS}
    plugin = attached(page, scheduler)
    loop = Loop(scheduler, plugin, overlap=overlap)

    def work():
        clock.now_ns += lengths_ns[loop.launched.mode]

    loop.work = work
    for number in range(12):
        scheduler.waiting_queue = [Request(f"r{number}")]
        for _ in range(6):
            loop.turn()
    times = plugin._telemetry.times
    assert times.prefill_ns(10) == pytest.approx(30 * MS, rel=0.01)
    assert times.decode_ns(1, 12) == pytest.approx(10 * MS, rel=0.01)


@pytest.mark.parametrize("overlap", [False, True])
def test_while_nothing_is_lent_the_load_is_said_now_and_then_and_its_end_at_once(page, overlap, monkeypatch):
    said = []
    set_load = ArbiterPage.set_load
    monkeypatch.setattr(ArbiterPage, "set_load", lambda page, load: (said.append(load), set_load(page, load)))
    _, wanted = served(page, Scheduler(), overlap=overlap, turns=12, work=lambda: None)
    assert wanted[0] is overlap, "a version of rollouts' weights may come in between two steps"
    assert not wanted[-1]
    load = page.serving_load()
    assert (load.finished, load.running, load.waiting, load.wanted) == (3, 0, 0, False)
    busy = [load for load in said if load.running or load.waiting]
    assert len(busy) <= 1
    assert page.get(Party.SERVING, Field.STEPS) == (5 if overlap else 4), "every step was learned from"


def test_the_device_is_wanted_before_a_request_is_unpacked(page):
    lend(page)
    scheduler = Scheduler()
    plugin = attached(page, scheduler)
    with zmq.Context() as context, context.socket(zmq.PAIR) as server, context.socket(zmq.PAIR) as socket:
        server.bind("inproc://server")
        socket.connect("inproc://server")
        scheduler.recv_from_tokenizer = socket
        plugin.receiving()
        assert not page.serving_wants()
        server.send(b"a request")
        socket.poll()
        plugin.receiving()
        assert page.serving_wants()
        socket.recv()
        plugin.received()
    assert not page.serving_wants(), "it was something else that the server wanted"


def arrivals(page):
    return [span for span in page.drain(Party.SERVING, 0)[0] if span.kind is Span.ARRIVAL]


def test_an_arrival_says_how_long_text_and_the_way_to_the_scheduler_took(page):
    lend(page)
    serving = Serving(page)
    first, second = Request("r0"), Request("r1")
    received_s = monotonic_ns() / 1e9 - 0.050
    for request in (first, second):
        request.time_stats = SimpleNamespace(created_time=received_s, api_server_dispatch_time=received_s + 0.040)
    serving.serve(first, second, turns=1)
    (arrival,) = arrivals(page)
    assert arrival.start_ns == arrival.end_ns == page.get(Party.SERVING, Field.FIRST_WANTED_NS)
    assert arrival.aux - arrival.latency_ns == pytest.approx(40_000_000, abs=1000)
    assert arrival.aux >= 50_000_000
    # What came while serving computed waited for that, not for rollouts.
    late = Request("r2")
    late.time_stats = first.time_stats
    serving.serve(late, turns=1)
    assert len(arrivals(page)) == 1
    serving.serve(Request("unstamped"), turns=1)
    assert len(arrivals(page)) == 1


def test_a_server_whose_core_is_ahead_hands_over_when_serving_wants_the_device(page):
    lend(page)
    request = Request("r0")
    ahead_s = monotonic_ns() / 1e9 + 5
    request.time_stats = SimpleNamespace(created_time=ahead_s - 0.001, api_server_dispatch_time=ahead_s)
    Serving(page).serve(request, turns=1)
    ((arrival,), wanted) = arrivals(page), page.get(Party.SERVING, Field.FIRST_WANTED_NS)
    assert (arrival.start_ns, arrival.aux, arrival.latency_ns) == (wanted, 0, 0)


def test_a_request_waits_from_when_the_server_received_it(page):
    lend(page)
    scheduler = Scheduler()
    plugin = attached(page, scheduler)
    request = Request("r")
    request.time_stats.created_time = (monotonic_ns() - 50_000_000) / 1e9
    scheduler.waiting_queue = [request]
    plugin.received()
    assert page.serving_load().first_token_due_ns - BUDGET_NS <= monotonic_ns() - 50 * MS
    foreign = Request("of another clock")
    foreign.time_stats.created_time = 1.0
    scheduler.waiting_queue = [foreign]
    plugin.received()
    assert monotonic_ns() < page.serving_load().first_token_due_ns


@pytest.mark.parametrize(("budget_ms", "lent_ms", "late"), [(1000, 0, (0, 0)), (1, 0, (1, 0)), (200, 400, (0, 1))])
def test_late_requests_are_put_down_to_serving_or_to_lending(page, clock, budget_ms, lent_ms, late):
    page.set_terms(Budgets(budget_ms * 10**6, 10**12), 64, SHARED)
    lend(page)

    def work():
        clock.now_ns += (5 + lent_ms) * MS
        page.set(Party.ROLLOUT, Field.WORKED_NS, page.get(Party.ROLLOUT, Field.WORKED_NS) + lent_ms * 10**6)

    served(page, Scheduler(), overlap=False, requests=1, work=work)
    load = page.serving_load()
    assert (load.late_alone, load.late_by_lending) == late


@pytest.mark.parametrize(("priority", "late"), [(None, 0), (0, 0), (1, 1), (2, 1)])
def test_a_request_is_late_by_the_budgets_of_its_own_class(page, priority, late):
    classes = {0: Budgets(10**12, 10**12), 1: Budgets(1, 10**12), 2: Budgets(10**12, 1)}
    page.set_terms(Budgets(10**12, 10**12, classes=classes), 64, SHARED)
    lend(page)
    Serving(page).serve(Request("r", priority=priority), turns=6)
    load = page.serving_load()
    assert (load.finished, load.late_alone, load.ttft_budget_ns) == (1, late, 1)


def test_the_load_says_which_request_is_due_first_by_its_own_budgets(page):
    page.set_terms(Budgets(500 * MS, 50 * MS, classes={1: Budgets(200 * MS, 20 * MS)}), 64, SHARED)
    lend(page)
    serving = Serving(page)
    requests = [Request("first", new_tokens=100), Request("urgent", new_tokens=100, priority=1)]
    came_ns = monotonic_ns()
    for request, age_ns in zip(requests, (100 * MS, 50 * MS), strict=True):
        request.time_stats.created_time = (came_ns - age_ns) / 1e9
    serving.scheduler.waiting_queue = list(requests)
    serving.plugin.received()
    assert page.serving_load().first_token_due_ns == pytest.approx(came_ns + 150 * MS, abs=1000)
    serving.serve(turns=1)
    load = page.serving_load()
    assert load.ttft_budget_ns == 200 * MS
    assert load.next_token_due_ns - monotonic_ns() < 20 * MS


def test_without_budgets_on_the_page_nothing_can_be_lent(tmp_path):
    page = ArbiterPage.create(tmp_path / "bare")
    lend(page)
    attached(page)
    load = page.serving_load()
    assert load.ttft_budget_ns == 0
    assert not attainable(load)


def test_room_for_regret_grows_with_what_serving_took_and_shrinks_with_what_was_lent(page, clock):
    lend(page, regret_share=0.5)
    serving = Serving(page, work=lambda: setattr(clock, "now_ns", clock.now_ns + 10 * MS))
    serving.serve(Request("r", new_tokens=100), turns=2)
    early = page.serving_load().regret_room_ns
    serving.serve(turns=1)
    later = page.serving_load().regret_room_ns
    assert 0 < early < later
    page.set(Party.ROLLOUT, Field.WORKED_NS, 10**9)
    serving.serve(turns=1)
    assert page.serving_load().regret_room_ns < 0


def test_what_fails_in_the_plugin_ends_the_lending_and_not_the_serving(page):
    lend(page)
    serving, request = Serving(page), Request("r")
    assert page.alive(Party.SERVING)
    del serving.scheduler.tree_cache  # As after an update of SGLang that renamed it.
    serving.serve(request, turns=6)
    assert request.ended
    assert page.get(Party.SERVING, Field.BROKEN) == 1
    assert not page.alive(Party.SERVING)
    assert "AttributeError" in described(page.path, "serving").refused


def test_a_page_that_comes_later_is_found_and_one_that_is_replaced_is_left(tmp_path):
    path = tmp_path / "page"
    plugin = ServingPlugin(Scheduler(), path, None)
    plugin.received()
    page = ArbiterPage.create(path)
    looks_now(plugin)
    assert page.alive(Party.SERVING)
    page.close()
    path.unlink()
    again = ArbiterPage.create(path)
    looks_now(plugin)
    assert again.alive(Party.SERVING)


def test_that_its_owner_let_go_of_the_page_is_left_beside_it_until_an_engine_takes_it(page):
    for number, detached in ((RELEASE, False), (DETACH, True)):
        plugin = attached(page)
        assert page.alive(Party.SERVING)
        plugin.attach(number)
        assert not page.alive(Party.SERVING)
        assert detached_note(page.path).exists() is detached
    # One whose owner names the page in its unit file.
    attached(page)
    assert not detached_note(page.path).exists()


def test_it_says_how_it_is(page, monkeypatch, tmp_path):
    monkeypatch.setattr("rose.runtime.coserving.hooks.serving.PAGE_LINK", f"{tmp_path}/")
    plugin = ServingPlugin(Scheduler(), None, None)
    assert (plugin.state.page, plugin.state.attached, plugin.state.detached) == (None, False, False)
    plugin.attach(7)
    plugin.received()
    assert plugin.state.reason == f"there is no page at {tmp_path / '7'}"
    (tmp_path / "7").symlink_to(page.path)
    plugin.attach(7)
    plugin.received()
    state = plugin.state
    assert (state.page, state.attached, state.reason) == (str(page.path), True, None)
    plugin.attach(RELEASE)
    assert not plugin.state.detached
    plugin.attach(DETACH)
    assert plugin.state.detached
    assert EngineState.from_message(asdict(plugin.state)) == plugin.state


def test_a_page_that_cannot_be_used_is_left_alone_until_it_can(page):
    note = page.path.with_name("page.serving.json")
    note.mkdir()
    plugin = attached(page)
    assert not page.alive(Party.SERVING)
    assert "page.serving.json" in plugin.state.reason
    note.rmdir()
    looks_now(plugin)
    assert page.alive(Party.SERVING)


def test_an_engine_that_lets_go_in_a_step_is_not_counted_as_working_for_ever(page):
    plugin = attached(page)
    plugin.begin(Batch([], "decode"))
    assert page.open(Party.SERVING, monotonic_ns()) is not None
    plugin.attach(DETACH)
    assert page.open(Party.SERVING, monotonic_ns()) is None
    assert len(page.drain(Party.SERVING, 0)[0]) == 1


@pytest.fixture
def shared(page):
    """Rollouts hold 500 of 1,000 slots; 100 must stay free."""
    page.set_terms(Budgets(10**9, 10**9), 64, replace(SHARED, device_bytes=10_000))
    rollout = ArbiterPage.attach(page.path, Party.ROLLOUT)
    rollout.set(Party.ROLLOUT, Field.KV_TOKENS_USED, 500)
    rollout.set(Party.ROLLOUT, Field.PREEMPTIBLE, 1)
    lend(page)
    return rollout


def presses(page, scheduler, prompt=450):
    plugin = attached(page, scheduler)
    scheduler.waiting_queue = [Request("large", prompt)]
    plugin.received()
    return plugin


def test_memory_is_pressed_from_the_arrival_of_a_prompt_on(page, shared, monkeypatch):
    monkeypatch.setattr(memory, "CUT_WAIT_NS", 0)
    before = monotonic_ns()
    scheduler = Scheduler()
    plugin = presses(page, scheduler)
    assert page.memory().serving_tokens == 450
    assert before <= page.get(Party.SERVING, Field.PRESSED_SINCE_NS) <= monotonic_ns()
    since = page.get(Party.SERVING, Field.PRESSED_SINCE_NS)
    plugin.received()
    assert page.get(Party.SERVING, Field.PRESSED_SINCE_NS) == since
    scheduler.waiting_queue = []
    plugin.received()
    assert page.get(Party.SERVING, Field.PRESSED_SINCE_NS) == 0


def test_serving_waits_for_what_rollouts_give_back_once_in_a_lease(page, shared, monkeypatch):
    monkeypatch.setattr(memory, "CUT_WAIT_NS", LEASE_NS)
    monkeypatch.setattr(memory.time, "sleep", lambda _: shared.set_cut(cut_record()))
    plugin = presses(page, Scheduler())
    waited = page.get(Party.SERVING, Field.CUT_WAIT_NS)
    assert 0 < waited <= monotonic_ns()
    plugin.received()
    assert page.get(Party.SERVING, Field.CUT_WAIT_NS) == waited, "this lease was cut"


@pytest.mark.parametrize(
    "case", ["fits", "not lent", "cut before", "rollouts gone", "nothing held", "no guard", "own cores"]
)
def test_serving_waits_for_nothing_that_will_not_come(page, shared, case, monkeypatch):
    monkeypatch.setattr(memory, "CUT_WAIT_NS", LEASE_NS)
    match case:
        case "not lent":
            page.set_lease(LeaseTerms(number=1))
        case "cut before":
            shared.set_cut(cut_record())
        case "rollouts gone":
            shared.close()
        case "nothing held":
            shared.set(Party.ROLLOUT, Field.KV_TOKENS_USED, 0)
        case "own cores":  # It runs beside serving, as on a GPU, and cuts by itself.
            shared.set(Party.ROLLOUT, Field.PREEMPTIBLE, 0)
        case "no guard":
            lend(page, policy="share_all")
    presses(page, Scheduler(), prompt=100 if case == "fits" else 950)
    assert page.get(Party.SERVING, Field.CUT_WAIT_NS) == 0


def test_credit_ends_when_a_request_arrives_while_the_scheduler_computes(page):
    context = zmq.Context()
    receiver, sender = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    sender.connect(f"tcp://127.0.0.1:{receiver.bind_to_random_port('tcp://127.0.0.1')}")
    sender.send(b"the first")
    assert receiver.recv() == b"the first", "the connection is there: its own messages are behind it"
    scheduler = Scheduler()
    scheduler.recv_from_tokenizer = receiver
    plugin = attached(page, scheduler)
    try:
        for _ in range(3):
            with pytest.raises(zmq.Again):
                receiver.recv(zmq.NOBLOCK)
            plugin.received()
            page.set(Party.SERVING, Field.CREDIT_NS, 5 * MS)
            time.sleep(0.05)
            assert page.get(Party.SERVING, Field.CREDIT_NS) == 5 * MS, "nothing arrived"
            sender.send(b"a request")
            until(lambda: not page.get(Party.SERVING, Field.CREDIT_NS))
            assert receiver.recv(zmq.NOBLOCK) == b"a request"
        plugin.attach(RELEASE)
        page.set(Party.SERVING, Field.CREDIT_NS, 5 * MS)
        sender.send(b"a request")
        time.sleep(0.05)
        assert page.get(Party.SERVING, Field.CREDIT_NS) == 5 * MS, "who let go of the page does not write to it"
    finally:
        context.destroy(linger=0)


def test_while_step_follows_step_memory_is_written_at_each_and_the_load_at_intervals(page, clock):
    lend(page)
    serving = Serving(page, overlap=True)
    serving.serve(Request("r", new_tokens=1000), turns=4)
    load, serving.scheduler.held = page.serving_load(), 77
    clock.now_ns += MS
    serving.loop.turn()
    assert page.get(Party.SERVING, Field.KV_TOKENS_USED) == 77
    assert load.wanted
    assert page.serving_load() == load
    clock.now_ns += 100 * MS
    serving.loop.turn()
    assert page.serving_load().next_token_due_ns > load.next_token_due_ns
