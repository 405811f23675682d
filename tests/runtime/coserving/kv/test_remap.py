import ctypes
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.clock import monotonic_ns
from rose.runtime.coserving.kv import remap
from rose.runtime.coserving.kv.activation import Activation, NoRoomError
from rose.runtime.coserving.kv.memory import KvGuard
from rose.runtime.coserving.kv.remap import KvBuffers, RemappedPages, create_buffers
from rose.runtime.coserving.page import ArbiterPage, Field, Party
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.slack import Budgets, LeaseTerms
from tests.runtime.coserving.kv.counted_memory import CountedMemory
from tests.runtime.coserving.lending import MEMORY, lease

SLOTS, LAYERS, HEADS, DIM = 300, 2, 2, 32
#: A slot's keys are 256 bytes: 16 of them are a page.
BLOCK = 16


@pytest.fixture(scope="module", autouse=True)
def sglang_is_not_loaded():
    requests = ModuleType("base_prefix_cache")
    requests.EvictParams = SimpleNamespace
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "sglang.srt.mem_cache.base_prefix_cache", requests)
        yield


class Cache:
    def __init__(self, allocator):
        self.allocator, self.slots = allocator, []

    def evictable_size(self):
        return sum(len(slots) for slots in self.slots)

    def evict(self, params):
        freed = 0
        while self.slots and freed < params.num_tokens:
            slots = self.slots.pop(0)
            freed += len(slots)
            self.allocator.free(slots)


class TokenToKVPoolAllocator:
    def __init__(self, pool):
        self.pool = pool
        TokenToKVPoolAllocator.clear(self)

    def get_kvcache(self):
        return self.pool

    def available_size(self):
        return len(self.free_pages) + len(self.release_pages)

    def alloc(self, need_size):
        if need_size > len(self.free_pages) + len(self.release_pages):
            return None
        every = torch.cat((self.free_pages, self.release_pages))
        slots, self.free_pages, self.release_pages = every[:need_size], every[need_size:], every[:0]
        return slots

    def free(self, slots):
        self.release_pages = torch.cat((slots, self.release_pages))

    def clear(self):
        self.free_pages, self.release_pages = torch.arange(1, SLOTS + 1), torch.empty(0, dtype=torch.int64)


class MHATokenToKVPool(SimpleNamespace):
    def __init__(self, **changes):
        usual = {"page_size": 1, "kv_cache_layout": "nhd", "enable_custom_mem_pool": False, "device": "cpu"}
        super().__init__(**{**usual, **changes}, memory_saver_adapter=SimpleNamespace(enabled=False))
        self.layer_num, self.store_dtype = LAYERS, torch.float32

    def _kv_buffer_shapes(self):
        return (SLOTS + 1, HEADS, DIM), (SLOTS + 1, HEADS, getattr(self, "value_dim", DIM))


class Engine:
    def __init__(self, limit_bytes=1 << 40):
        self.memory, self.pool = CountedMemory(limit_bytes), MHATokenToKVPool()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(remap, "HostMemory", lambda: self.memory)
            create_buffers(lambda _: pytest.fail("it can be moved"), self.pool)
        self.token_to_kv_pool_allocator = self.allocator = TokenToKVPoolAllocator(self.pool)
        self.tree_cache = Cache(self.allocator)
        self.pages = RemappedPages.of(self)

    @property
    def buffers(self):
        return self.pool._rose_buffers

    def write(self, slots, value):
        for buffer in (*self.pool.k_buffer, *self.pool.v_buffer):
            buffer[slots] = value

    def holds(self, slots, value):
        return all(bool((buffer[slots] == value).all()) for buffer in (*self.pool.k_buffer, *self.pool.v_buffer))


def test_what_is_given_back_is_the_system_s_and_what_is_in_use_stays():
    engine = Engine()
    used = engine.allocator.alloc(100)
    engine.write(used, 3.0)
    engine.allocator.free(used[40:])
    before = engine.memory.held_bytes
    returned = engine.pages.give_back()
    assert returned == before - engine.memory.held_bytes == before - engine.buffers.mapped_bytes
    assert engine.buffers.blocks.mapped == {0, 1, 2}, "slots 1 to 40, and slot 0 of padding"
    assert engine.holds(used[:40], 3.0)
    assert engine.allocator.available_size() == SLOTS - 40, "no slot is lost to SGLang's own accounts"
    assert engine.pages.give_back() == 0


def test_what_comes_again_is_empty_and_the_lowest_slots_are_handed_out_first(monkeypatch):
    engine = Engine()
    everything = engine.allocator.alloc(SLOTS)
    engine.write(everything, 3.0)
    engine.allocator.free(torch.flip(everything, [0]))
    engine.pages.give_back()
    allow = engine.memory.allow

    def used_before(address, size_bytes):
        allow(address, size_bytes)
        ctypes.memset(address, 0xFF, size_bytes)

    monkeypatch.setattr(engine.memory, "allow", used_before)
    assert engine.pages.grow(64) == 64
    slots = engine.allocator.alloc(64)
    assert sorted(slots.tolist()) == slots.tolist() == list(range(1, 65))
    assert engine.holds(slots[BLOCK:], 0.0), "memory that was another's is no keys and values"


def test_a_device_with_too_little_gives_what_it_has_and_the_rest_later(monkeypatch):
    monkeypatch.setattr(remap, "_AGAIN_NS", -1)
    engine = Engine(limit_bytes=1 << 30)
    engine.pages.give_back()
    block_bytes = engine.buffers.block_bytes
    engine.memory.limit_bytes = engine.memory.held_bytes + 3 * block_bytes
    assert engine.pages.grow(200) == 4 * BLOCK - 1
    assert engine.memory.free_bytes() == 0
    assert engine.allocator.available_size() == SLOTS
    assert not engine.pages.surplus(4 * BLOCK - 1), "nothing to give back for what never came"
    engine.memory.limit_bytes = 1 << 30
    assert engine.pages.grow(200) == 200
    assert engine.pages.grow(1 << 40) == 1 << 40, "all there is, is all that was asked"


def test_room_that_another_takes_first_leaves_the_pool_whole(monkeypatch):
    engine = Engine(limit_bytes=1 << 30)
    engine.pages.give_back()
    held = engine.memory.held_bytes
    engine.memory.limit_bytes = held + 5 * engine.buffers.block_bytes // 2
    with pytest.raises(NoRoomError):
        engine.buffers.map([3, 4, 5])
    assert engine.memory.held_bytes == engine.buffers.mapped_bytes == held
    assert engine.buffers.blocks.mapped == {0}
    monkeypatch.setattr(engine.memory, "free_bytes", lambda: 1 << 30)
    monkeypatch.setattr(engine.memory, "map", CountedMemory(0).map)
    assert engine.pages.grow(100) == BLOCK - 1
    assert engine.allocator.available_size() == SLOTS


def test_the_cache_gives_way_before_memory_is_asked_for():
    engine = Engine()
    engine.pages.give_back()
    engine.pages.grow(3 * BLOCK - 1)
    slots = engine.allocator.alloc(3 * BLOCK - 1)
    engine.tree_cache.slots = [slots[:BLOCK], slots[BLOCK:]]
    held = engine.memory.held_bytes
    assert len(engine.allocator.alloc(10)) == 10
    assert engine.memory.held_bytes == held
    assert len(engine.allocator.alloc(100)) == 100, "beyond any budget: memory comes all the same"
    engine.memory.limit_bytes = engine.memory.held_bytes
    assert engine.allocator.alloc(SLOTS) is None, "SGLang's own answer where there is none"


def test_a_flush_hands_out_no_slot_without_memory():
    engine = Engine()
    engine.pages.give_back(2 * BLOCK)
    engine.allocator.clear()
    mapped = engine.buffers.blocks.mapped_slots
    assert engine.allocator.free_pages.tolist() == list(range(1, mapped + 1))
    assert engine.allocator.available_size() == SLOTS


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(["alloc", "free", "grow", "give_back"]), st.integers(0, SLOTS)), max_size=25))
def test_no_order_of_acts_loses_a_slot_or_the_bytes_of_one_in_use(acts):
    engine = Engine()
    held: list[torch.Tensor] = []
    rng = np.random.default_rng(len(acts))
    for act, number in acts:
        if act == "alloc" and number <= engine.allocator.available_size():
            slots = engine.allocator.alloc(number)
            engine.write(slots, 1.0)
            shuffled = slots[torch.from_numpy(rng.permutation(len(slots)))]
            held += [part for part in shuffled.split(1 + number // 3) if len(part)]
        elif act == "free" and held:
            engine.allocator.free(held.pop(number % len(held)))
        elif act == "grow":
            assert engine.pages.grow(number) == number
        elif act == "give_back":
            before = engine.memory.held_bytes
            assert engine.pages.give_back(number) == before - engine.memory.held_bytes
        used = torch.cat(held) if held else torch.empty(0, dtype=torch.int64)
        assert engine.holds(used, 1.0)
        assert engine.allocator.available_size() == SLOTS - len(used)
        free = engine.allocator.free_pages
        assert len(set(free.tolist()) | set(used.tolist())) == len(free) + len(used)
        assert {int(slot) // BLOCK for slot in free} <= engine.buffers.blocks.mapped
        assert engine.memory.held_bytes == engine.buffers.mapped_bytes
        assert engine.buffers.mapped_bytes == len(engine.buffers.blocks.mapped) * engine.buffers.block_bytes
    engine.buffers.close()
    assert engine.memory.held_bytes == 0


class View:
    kv_tokens_total = SLOTS
    waiting: tuple[object, ...] = ()

    def __init__(self, engine, has_work=True):
        self.engine, self.has_work = engine, has_work
        self.running: list[object] = []

    def kv_tokens_used(self):
        return SLOTS - self.engine.allocator.available_size() - self.kv_tokens_cached()

    def kv_tokens_cached(self):
        return self.engine.tree_cache.evictable_size()

    def held(self):
        return {}

    def evict(self, tokens):
        if tokens > 0:
            self.engine.tree_cache.evict(SimpleNamespace(num_tokens=tokens))


def test_a_guard_takes_what_a_lease_lends_and_gives_it_back_on_a_cut_and_at_its_end(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.set_terms(Budgets(1, 1), 1, MEMORY)
    engine = Engine()
    view = View(engine, has_work=False)
    activation = Activation(page, engine.pages, lambda: False)
    guard = KvGuard(page, view, engine.pages, activation)
    rose, buffers = POLICIES["rose"], engine.buffers
    assert engine.pages.mechanism == "remap"

    guard.enforce(LeaseTerms(), rose, monotonic_ns())
    assert buffers.blocks.mapped == {0}, "nothing is lent: all but padding's is the system's"
    guard.enforce(lease(200), rose, monotonic_ns())
    assert buffers.blocks.mapped == {0}, "nothing has to be done yet"
    view.has_work = True
    guard.enforce(lease(200), rose, monotonic_ns())
    assert 200 <= buffers.blocks.mapped_slots < 200 + BLOCK

    engine.tree_cache.slots = list(engine.allocator.alloc(190).split(10))
    guard.enforce(lease(120, number=2), rose, monotonic_ns())
    assert 120 <= buffers.blocks.mapped_slots < 120 + 2 * BLOCK, "a smaller budget, the cache's share with it"

    page.set(Party.SERVING, Field.KV_TOKENS_USED, 950)
    before = engine.memory.held_bytes
    guard.enforce(lease(120, number=2), rose, monotonic_ns())
    assert page.cut().tokens_after == guard.budget_tokens == 60
    assert page.cut().bytes_returned == before - engine.memory.held_bytes > 0
    assert 60 <= buffers.blocks.mapped_slots < 60 + 2 * BLOCK

    view.has_work = False
    guard.enforce(LeaseTerms(), rose, monotonic_ns())
    assert buffers.blocks.mapped == {0}
    assert view.kv_tokens_cached() == 0


def test_a_lease_waits_for_memory_that_another_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(remap, "_AGAIN_NS", -1)
    page = ArbiterPage.create(tmp_path / "page")
    engine = Engine(limit_bytes=1 << 30)
    view = View(engine)
    request = SimpleNamespace(origin_input_ids=[1] * 50, sampling_params=SimpleNamespace(max_new_tokens=50))
    view.waiting = (request,)
    view.end = lambda requests: pytest.fail("it has a place as soon as there is memory")
    guard = KvGuard(page, view, engine.pages)
    engine.pages.give_back()
    engine.memory.limit_bytes = engine.memory.held_bytes
    guard.enforce(lease(200), POLICIES["rose"], monotonic_ns())
    assert guard.budget_tokens == BLOCK - 1
    assert guard.withheld_tokens == SLOTS - (BLOCK - 1), "no prefill counts on what is not there"
    engine.memory.limit_bytes = 1 << 30
    guard.enforce(lease(200), POLICIES["rose"], monotonic_ns())
    assert guard.budget_tokens == 200


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"page_size": 16}, "pages of 16 slots"),
        ({"kv_cache_layout": "hnd"}, "layout hnd"),
        ({"enable_custom_mem_pool": True}, "another allocator has its memory"),
        ({"value_dim": 2 * DIM}, "its values"),
    ],
)
def test_a_pool_of_another_make_is_left_where_it_is_with_the_reason(change, reason, caplog):
    pool = MHATokenToKVPool(**change)
    assert create_buffers(lambda pool: "SGLang's own", pool) == "SGLang's own"
    assert reason in caplog.text
    assert (
        RemappedPages.of(SimpleNamespace(token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool))) is None
    )


def test_a_pool_that_does_not_fit_leaves_nothing():
    memory = CountedMemory(10_000)
    with pytest.raises(NoRoomError):
        KvBuffers(memory, slots=SLOTS, layers=1, shape=(2, 32), dtype=torch.float32)
    assert memory.held_bytes == 0
