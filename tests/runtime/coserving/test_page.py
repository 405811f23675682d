import os
import threading
from dataclasses import fields, replace

import pytest

from rose.runtime.coserving.page import (
    RING_SPANS,
    ArbiterPage,
    Field,
    PageError,
    Party,
    SectionHeldError,
    Span,
    SpanRecord,
)
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets, LeaseTerms, ServingLoad
from tests.runtime.coserving.lending import cut_record
from tests.runtime.coserving.parties import OtherParty

NUMBERS = {field.name: number for number, field in enumerate(fields(ServingLoad), 2)}
LOAD = ServingLoad(**{**NUMBERS, "wanted": True, "waiting_prefill_ns": None, "largest_prefill_ns": None})
MEMORY = KvMemory(
    device_bytes=1 << 40, serving_bytes_per_token=70, rollout_bytes_per_token=30, headroom=0.2, high_watermark=0.5
)
BUDGETS = Budgets(5, 6, classes={number - 3: Budgets(8, 9 + number) for number in range(8)})
TERMS = LeaseTerms(
    number=3, expires_ns=10, compute_share=0.75, kv_budget_tokens=4242, regret_share=0.05, frozen=True, policy=2
)


@pytest.fixture
def page(tmp_path):
    return ArbiterPage.create(tmp_path / "page")


def test_facts_come_back_as_they_went_in(page):
    cut = cut_record(2, at_ns=3, tokens_before=4, tokens_after=5)
    assert page.lease() == LeaseTerms()
    assert (page.budgets(), page.memory(), page.serving_load(), page.cut()) == (Budgets(0, 0), None, None, None)
    page.set_lease(TERMS)
    page.set_terms(BUDGETS, 7, MEMORY)
    for room_ns in (-1, -8):  # A room that is overdrawn is known, whatever it is.
        page.set_load(replace(LOAD, regret_room_ns=room_ns))
        assert page.serving_load().regret_room_ns == room_ns
    page.set_load(LOAD)
    page.set_cut(cut)
    page.set(Party.SERVING, Field.KV_TOKENS_USED, 20)
    page.set(Party.ROLLOUT, Field.KV_TOKENS_USED, 21)
    assert page.lease() == TERMS
    assert (page.budgets(), page.max_prompt_tokens()) == (BUDGETS, 7)
    assert page.memory() == replace(MEMORY, serving_tokens=20, rollout_tokens=21)
    assert page.serving_load() == LOAD
    assert page.cut() == cut


def test_facts_that_belong_together_are_never_read_torn(page):
    reader = ArbiterPage(page.path)
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            page.set_load(replace(LOAD, waiting=number, running=number, finished=number, worked_ns=number))

    writer = threading.Thread(target=write)
    writer.start()
    torn, seen = [], set()
    try:
        for _ in range(5_000):
            load = reader.serving_load()
            if load is not None:
                seen.add(load.waiting)
                if len({load.waiting, load.running, load.finished, load.worked_ns}) != 1:
                    torn.append(load)
    finally:
        stop.set()
        writer.join()
    assert torn == []
    assert len(seen) > 1


def test_a_block_whose_writer_stopped_in_the_middle_is_not_taken_for_the_truth(page):
    page.set_load(LOAD)
    section = page._sections[Party.SERVING]
    changed = [index for index in range(len(section)) if section[index] == LOAD.waiting]
    assert changed
    section[changed[0]] += 1
    assert page.serving_load() is None


def test_a_restarted_agent_takes_the_page_up_and_nobody_who_has_it_mapped_is_harmed(page):
    page.set_lease(TERMS)
    with OtherParty(page.path, Party.SERVING) as serving:
        serving.do("assert page.lease().kv_budget_tokens == 4242; page.set(me, Field.WAITING, 7)")
        serving.do("page.open_span(me, Span.SERVING, 100); page.close_span(me, 250, aux=3, latency_ns=12)")
        assert page.drain(Party.SERVING, 0) == ([SpanRecord(Span.SERVING, 100, 250, 3, 12)], 1, 0)
        inode = page.inode
        page.close()
        again = ArbiterPage.create(page.path)
        assert again.inode == inode
        assert again.get(Party.SERVING, Field.WAITING) == 7
        assert again.lease() == LeaseTerms(), "what the agent before lent has ended"
        again.set_lease(replace(TERMS, number=8))
        serving.do("assert (page.lease().number, page.replaced()) == (8, False)")


def test_a_page_of_another_version_is_replaced_not_truncated(tmp_path):
    path = tmp_path / "page"
    path.write_bytes(b"another version")
    with path.open("rb") as held:
        page = ArbiterPage.create(path)
        assert held.read() == b"another version"
    assert page.lease() == LeaseTerms()


def test_a_section_has_one_writer(page):
    with pytest.raises(PageError, match=f"pid {os.getpid()}, writes the section AGENT"):
        ArbiterPage.create(page.path)
    assert not page.alive(Party.SERVING)
    with OtherParty(page.path, Party.SERVING):
        assert page.alive(Party.SERVING)
        with pytest.raises(SectionHeldError):
            ArbiterPage.attach(page.path, Party.SERVING)
    assert not page.alive(Party.SERVING), "the kernel says so, whatever the process left on the page"


def test_a_full_ring_says_how_many_spans_it_lost(page):
    for index in range(RING_SPANS + 10):
        page.open_span(Party.ROLLOUT, Span.ROLLOUT, index + 1)
        page.close_span(Party.ROLLOUT, index + 2)
    spans, tail, lost = page.drain(Party.ROLLOUT, 0)
    assert lost == 10
    assert len(spans) == RING_SPANS
    assert spans[0].start_ns == 11
    assert page.drain(Party.ROLLOUT, tail) == ([], tail, 0)


def test_a_step_whose_core_was_taken_counts_until_serving_woke(page):
    page.take(Party.ROLLOUT)
    page.set(Party.ROLLOUT, Field.WORKED_NS, 1000)
    page.open_span(Party.ROLLOUT, Span.ROLLOUT, 20)
    page.set(Party.SERVING, Field.WANTED_SINCE_NS, 30)
    page.set(Party.SERVING, Field.FIRST_WANTED_NS, 30)
    assert page.rollout_worked_ns(50) == 1030, "a step that gives way by itself works until it does"
    page.set(Party.ROLLOUT, Field.PREEMPTIBLE, 1)
    assert page.rollout_worked_ns(50) == 1010
    assert page.open(Party.ROLLOUT, 50).end_ns == 30
    page.set(Party.ROLLOUT, Field.LOOKED_NS, 40)
    assert page.rollout_worked_ns(50) == 1030, "it has the core: it looked"


def test_time_that_rollouts_took_is_what_it_was_when_their_engine_dies_and_another_comes(page):
    with OtherParty(page.path, Party.ROLLOUT) as engine:
        engine.do("page.set(me, Field.WORKED_NS, 1000); page.open_span(me, Span.ROLLOUT, 20)")
        assert page.rollout_worked_ns(50) == 1030
    assert page.rollout_worked_ns(50) == 1000, "a step that nobody runs takes no time"
    page.take(Party.ROLLOUT)
    assert page.rollout_worked_ns(50) == 1000, "requests in flight count from what it was when they came"


def test_a_page_has_its_memory_from_the_start(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    assert page.path.stat().st_blocks * 512 >= page.path.stat().st_size
    page.close()
    page.close()


def test_a_sparse_page_gets_its_memory_before_an_engine_writes_to_it(tmp_path):
    path = tmp_path / "page"
    made = ArbiterPage.create(path)
    size = path.stat().st_size
    sparse = tmp_path / "sparse"
    sparse.touch(0o600)
    with sparse.open("wb") as file:
        file.write(path.read_bytes()[:4096])
        file.truncate(size)
    assert sparse.stat().st_blocks * 512 < size
    ArbiterPage.attach(sparse, Party.SERVING).close()
    assert sparse.stat().st_blocks * 512 >= size
    made.close()
