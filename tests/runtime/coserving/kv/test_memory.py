import os
from types import SimpleNamespace

import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.clock import monotonic_ns
from rose.runtime.coserving.kv.memory import KvGuard, KvPages
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.slack import Budgets, LeaseTerms
from tests.runtime.coserving.lending import MEMORY, PoolMemory, View, lease

ROSE = POLICIES["rose"]


@pytest.fixture
def page(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.set_terms(Budgets(1, 1), 1, MEMORY)
    return page


def say(page, *, serving, view):
    page.set(Party.SERVING, Field.KV_TOKENS_USED, serving)
    page.set(Party.ROLLOUT, Field.KV_TOKENS_USED, view.kv_tokens_used())


def test_pressure_halves_the_budget_once_and_the_youngest_go(page):
    view = View({f"r{index}": 100 for index in range(6)})
    guard = KvGuard(page, view, PoolMemory())
    say(page, serving=350, view=view)
    guard.enforce(lease(800), ROSE, monotonic_ns())
    assert guard.budget_tokens == 400
    assert view.ended == ["r5", "r4", "r3"]
    assert view.running == ["r0", "r1", "r2"], "each next step takes a slot for each: four would not fit"
    cut = page.cut()
    assert (cut.count, cut.lease_number, cut.tokens_before, cut.tokens_after) == (1, 1, 800, 400)
    assert (cut.requests, cut.tokens_kept) == (3, 300)
    assert view.kv_tokens_used() + view.cache <= 400, "what the cache holds is memory too"
    say(page, serving=700, view=view)
    guard.enforce(lease(800), ROSE, monotonic_ns())
    assert guard.budget_tokens == 400, "once in a lease"
    guard.enforce(lease(400, frozen=True), ROSE, monotonic_ns())
    assert guard.budget_tokens == 400, "the agent's own record of the cut is no second one"
    guard.enforce(lease(800, number=2), ROSE, monotonic_ns())
    assert guard.budget_tokens == 400
    assert page.cut().count == 2


def test_nothing_is_cut_where_a_cut_frees_no_memory(page):
    view = View({f"r{index}": 100 for index in range(6)})
    guard = KvGuard(page, view, None)
    say(page, serving=350, view=view)
    guard.enforce(lease(800), ROSE, monotonic_ns())
    assert (guard.budget_tokens, view.ended, guard.pressed(ROSE)) == (800, [], False)


def test_a_cut_is_timed_from_when_serving_was_pressed_and_is_rollouts_time(page):
    view = View({"r0": 600})
    guard = KvGuard(page, view, PoolMemory())
    say(page, serving=350, view=view)
    pressed_ns = monotonic_ns() - 40_000_000
    page.set(Party.SERVING, Field.PRESSED_SINCE_NS, pressed_ns)
    guard.enforce(lease(800), ROSE, monotonic_ns())
    cut = page.cut()
    assert cut.took_ns == cut.at_ns - pressed_ns
    assert page.get(Party.ROLLOUT, Field.WORKED_NS) > 0


def test_a_cut_is_finished_even_if_serving_computes_again(page, monkeypatch):
    view, classes = View({"r0": 600}), []
    evict = view.evict
    monkeypatch.setattr(view, "evict", lambda count: classes.append(os.sched_getscheduler(0)) or evict(count))
    say(page, serving=350, view=view)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        KvGuard(page, view, PoolMemory()).enforce(lease(800), ROSE, monotonic_ns())
        classes.append(os.sched_getscheduler(0))
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    assert page.cut().count == 1
    assert classes == [os.SCHED_OTHER, os.SCHED_IDLE]


def test_what_will_never_fit_goes_elsewhere(page):
    view = View({}, waiting=[("large", 300, 200), ("small", 10, 10)])
    guard = KvGuard(page, view, PoolMemory())
    guard.enforce(lease(400), ROSE, monotonic_ns())
    assert view.ended == ["large"]


def test_the_end_of_a_lease_gives_all_memory_back(page):
    view = View({})
    view.cache = 500
    guard = KvGuard(page, view, PoolMemory())
    guard.enforce(lease(800), ROSE, monotonic_ns())
    assert view.cache == 500
    guard.enforce(LeaseTerms(), ROSE, monotonic_ns())
    assert (view.cache, guard.budget_tokens, guard.withheld_tokens) == (0, 0, 1000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    holds=st.lists(st.integers(1, 200), max_size=8),
    budgets=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    serving=st.lists(st.integers(0, 1000), min_size=6, max_size=6),
)
def test_no_order_of_events_leaves_more_held_than_the_budget_or_grows_a_cut_one(page, holds, budgets, serving):
    view = View({f"r{index}": tokens for index, tokens in enumerate(holds)})
    guard = KvGuard(page, view, PoolMemory())
    lowest = 1 << 60
    count = 0 if page.cut() is None else page.cut().count
    for budget, tokens in zip(budgets, serving, strict=False):
        say(page, serving=tokens, view=view)
        guard.enforce(lease(budget, number=7), ROSE, monotonic_ns())
        assert view.kv_tokens_used() + len(view.running) <= guard.budget_tokens or not view.running
        if guard._cuts:
            assert guard.budget_tokens <= lowest
            lowest = min(lowest, guard._cut_tokens)
        assert guard.budget_tokens <= budget
    assert count >= 0
    assert guard._cuts <= 1


def test_pages_of_free_slots_go_back_to_the_system_and_slots_in_use_keep_what_they_hold():
    slots, row = 4096, 1024
    buffers = [torch.full((slots, row), 3, dtype=torch.uint8) for _ in range(4)]
    pool = SimpleNamespace(k_buffer=buffers[:2], v_buffer=buffers[2:])
    used = torch.arange(1000, 1100)
    free = torch.tensor([slot for slot in range(1, slots) if not 1000 <= slot < 1100])
    allocator = SimpleNamespace(free_pages=free[:2000], release_pages=free[2000:], get_kvcache=lambda: pool)
    scheduler = SimpleNamespace(token_to_kv_pool_allocator=allocator, page_size=1)
    before = psutil.Process().memory_info().rss
    returned = KvPages.of_cpu(scheduler).give_back()
    after = psutil.Process().memory_info().rss
    assert returned > 0.9 * 4 * slots * row
    assert before - after > 0.9 * returned
    for buffer in buffers:
        assert (buffer[used] == 3).all()
        assert (buffer[0] == 3).all(), "the slot of padding is in nobody's list"
    assert KvPages.of_cpu(scheduler).give_back() == 0, "what is not resident cannot be given back"
    buffers[0][5] = 9
    assert (buffers[0][5] == 9).all(), "a slot can be written again"
