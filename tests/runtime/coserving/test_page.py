from __future__ import annotations

import subprocess
import sys

import pytest

from rose.runtime.coserving.page import RING_SPANS, ArbiterPage, Field, PageError, Party, Span
from rose.runtime.policy.slack import Budgets, LeaseTerms


@pytest.fixture
def page(tmp_path):
    return ArbiterPage.create(tmp_path / "page")


def test_what_one_process_writes_another_reads(page):
    script = f"""
from pathlib import Path
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span
page = ArbiterPage.attach(Path({str(page.path)!r}), Party.SERVING)
page.set(Party.SERVING, Field.WAITING, 7)
page.open_span(Party.SERVING, Span.SERVING, 100)
page.close_span(Party.SERVING, 250, aux=3)
print(page.lease().kv_budget_tokens)
"""
    page.set_lease(1, LeaseTerms(10, 0.75, 4242))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "4242"
    assert page.serving_load().waiting == 7
    spans, tail, lost = page.drain(Party.SERVING, 0)
    assert [(span.kind, span.start_ns, span.end_ns, span.aux) for span in spans] == [(Span.SERVING, 100, 250, 3)]
    assert (tail, lost) == (1, 0)


def test_lease_and_budgets_come_back_as_they_went_in(page):
    page.set_lease(3, LeaseTerms(123, 0.25, 99))
    page.set_budgets(Budgets(5, 6), 7)
    assert page.lease() == LeaseTerms(123, 0.25, 99)
    assert page.budgets() == Budgets(5, 6)
    assert page.get(Party.AGENT, Field.MAX_PROMPT_TOKENS) == 7


def test_a_full_ring_says_how_many_spans_it_lost(page):
    for index in range(RING_SPANS + 10):
        page.open_span(Party.ROLLOUT, Span.ROLLOUT, index + 1)
        page.close_span(Party.ROLLOUT, index + 2)
    spans, tail, lost = page.drain(Party.ROLLOUT, 0)
    assert lost == 10
    assert len(spans) == RING_SPANS
    assert spans[0].start_ns == 11
    assert page.drain(Party.ROLLOUT, tail) == ([], tail, 0)


def test_open_work_is_seen_up_to_now(page):
    assert page.open(Party.ROLLOUT, 50) is None
    page.open_span(Party.ROLLOUT, Span.HELD, 20)
    span = page.open(Party.ROLLOUT, 50)
    assert (span.kind, span.start_ns, span.end_ns) == (Span.HELD, 20, 50)
    assert page.open(Party.ROLLOUT, 20) is None


def test_a_foreign_file_is_refused(tmp_path):
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"not a page")
    with pytest.raises(PageError, match="foreign is not an arbiter page"):
        ArbiterPage.attach(foreign, Party.SERVING)
