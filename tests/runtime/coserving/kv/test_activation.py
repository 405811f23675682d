import sys
from types import ModuleType, SimpleNamespace

import psutil
import pytest
import torch

from rose.clock import monotonic_ns
from rose.runtime.coserving.hooks.rollout import RolloutPlugin
from rose.runtime.coserving.kv import activation as activations
from rose.runtime.coserving.kv.activation import Activation, Move, SavedMemory
from rose.runtime.coserving.kv.memory import KvGuard, KvPages
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.slack import Budgets, LeaseTerms
from tests.runtime.coserving.lending import MEMORY, View, lease

ROSE = POLICIES["rose"]
SIZES = {"weights": 500, "kv_cache": 300}


class Saver:
    """SGLang's scheduler on a GPU of 1,000 bytes."""

    device = "cuda"

    def __init__(self):
        self.server_args = SimpleNamespace(enable_memory_saver=True, enable_weights_cpu_backup=True)
        self.weight_updater = self
        self.idle = True
        self.free = 1000 - sum(SIZES.values())
        self.calls = []
        self.takes_ns = 0

    def is_fully_idle(self):
        return self.idle

    def release_memory_occupation(self, request):
        assert self.idle, "SGLang's own condition"
        self.free += sum(SIZES[tag] for tag in request.tags)
        self.calls.append(("release", *request.tags))

    def resume_memory_occupation(self, request):
        self.free -= sum(SIZES[tag] for tag in request.tags)
        self.calls.append(("resume", *request.tags))
        until = monotonic_ns() + self.takes_ns
        while monotonic_ns() < until:
            pass


class Engine:
    def __init__(self, folder, memory=None):
        self.page = ArbiterPage.create(folder / "page")
        self.page.set_terms(Budgets(1, 1), 1, MEMORY)
        self.page.take(Party.ROLLOUT)
        self.saver, self.busy = Saver(), False
        memory = SavedMemory.of_gpu(self.saver) if memory is None else memory
        self.activation = Activation(self.page, memory, lambda: self.busy)
        self.view = View()
        self.guard = KvGuard(self.page, self.view, None, self.activation)

    def turn(self, number=0):
        return self.guard.enforce(lease(100, number) if number else LeaseTerms(), ROSE, monotonic_ns())

    @property
    def moves(self):
        return [
            Move.from_aux(span.aux) for span in self.page.drain(Party.ROLLOUT, 0)[0] if span.kind is Span.ACTIVATION
        ]

    @property
    def away(self):
        return self.page.get(Party.ROLLOUT, Field.AWAY_SINCE_NS) != 0


@pytest.fixture
def engine(tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    requests = ModuleType("io_struct")
    requests.ReleaseMemoryOccupationReqInput = requests.ResumeMemoryOccupationReqInput = SimpleNamespace
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", requests)
    monkeypatch.setattr(activations, "_free_bytes", lambda: engine.saver.free)
    return engine


def test_memory_comes_with_a_lease_and_goes_after_it(engine):
    assert not engine.away
    assert engine.turn()
    assert engine.turn()
    assert engine.away
    assert engine.saver.free == 1000
    assert not engine.turn(number=1), "time has passed: the lease is to be read again"
    assert not engine.away
    assert engine.turn(number=1)
    assert engine.turn()
    assert engine.saver.calls == [
        ("release", "kv_cache"),
        ("release", "weights"),
        ("resume", "weights", "kv_cache"),
        ("release", "kv_cache"),
        ("release", "weights"),
    ]
    assert engine.moves == [Move(800, True, False), Move(800, False, False), Move(800, True, False)]


def test_it_stays_until_the_engine_is_idle(engine):
    engine.saver.idle = False
    engine.turn()
    assert engine.saver.calls == []
    engine.view.holds["r"], engine.saver.idle = 10, True
    engine.turn()
    assert engine.saver.calls == [], "requests are ended first"
    engine.view.holds.clear()
    engine.turn()
    assert engine.away


def test_a_sync_has_the_weights_alone_until_it_is_done(engine):
    engine.turn()
    assert not engine.activation.weights_in
    assert engine.activation.bring_weights() is None
    engine.busy = True
    engine.turn()
    assert engine.activation.weights_in
    assert engine.away, "no turn can run"
    engine.busy = False
    engine.turn()
    assert engine.moves[1:] == [Move(500, False, True), Move(500, True, True)]
    assert engine.activation.bring_weights() is None
    assert not engine.turn(number=1), "a lease brings in the rest"
    assert engine.moves[-1] == Move(300, False, False)
    assert not engine.away


def test_without_room_a_sync_is_refused_and_a_lease_ends_the_engine(engine):
    engine.turn()
    engine.saver.free = 499
    assert "500 bytes of device memory are needed, and 499 are free" in engine.activation.bring_weights()
    with pytest.raises(activations.NoRoomError, match="800 bytes"):
        engine.turn(number=1)
    assert ("resume", "weights") not in engine.saver.calls


@pytest.mark.parametrize(("verb", "comes_back"), [("prepare", True), ("confirm", True), ("audit", False)])
def test_weights_that_are_away_come_back_for_whatever_must_have_them(engine, verb, comes_back):
    asked = []
    plugin = RolloutPlugin.__new__(RolloutPlugin)
    plugin.activation = engine.activation
    plugin.weights = SimpleNamespace(ask=lambda *what: asked.append(what))
    engine.turn()
    refused = plugin._ask_weights(verb, 3)
    assert engine.activation.weights_in is comes_back
    assert (asked, refused is None) == (([(verb, 3)], True) if comes_back else ([], False))


def test_an_engine_that_takes_too_long_ends_and_says_what_to_do(engine, monkeypatch):
    monkeypatch.setattr(activations, "ACTIVATION_NS_MAX", 1000)
    engine.turn()
    engine.saver.takes_ns = 2000
    with pytest.raises(RuntimeError, match=r"set coserving\.activation to resident"):
        engine.turn(number=1)
    assert engine.moves[-1] == Move(800, False, False), "the ledger has it all the same"


def test_an_engine_that_would_lose_its_weights_keeps_its_memory():
    saver = Saver()
    saver.server_args.enable_weights_cpu_backup = False
    assert SavedMemory.of_gpu(saver) is None


def test_pages_of_a_pool_on_the_host_are_counted_as_they_really_go_back(tmp_path):
    slots, row = 65_536, 1024
    buffers = [torch.zeros((slots, row), dtype=torch.uint8) for _ in range(2)]
    pool = SimpleNamespace(k_buffer=buffers[:1], v_buffer=buffers[1:])
    allocator = SimpleNamespace(
        free_pages=torch.arange(1, slots), release_pages=torch.arange(0), get_kvcache=lambda: pool
    )
    pages = KvPages.of_cpu(SimpleNamespace(token_to_kv_pool_allocator=allocator, page_size=1))
    engine = Engine(tmp_path, pages)
    engine.turn()
    assert engine.turn(number=1)
    assert [move.away for move in engine.moves] == [True], "of what was not used nothing comes"
    engine.view.holds["r"] = 10
    engine.busy = True
    assert engine.turn(number=1), "nothing to wait for"
    for buffer in buffers:
        buffer.fill_(3)
    before = psutil.Process().memory_info().rss
    engine.view.holds.clear()
    engine.turn()
    engine.turn()
    after = psutil.Process().memory_info().rss
    _, came, went = engine.moves
    assert came == Move(0, False, False)
    assert went.away
    assert went.moved_bytes > 0.9 * 2 * slots * row
    assert before - after > 0.9 * went.moved_bytes
    assert not engine.away, "it can be used again at once"
