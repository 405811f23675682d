"""The simplest controller: it keeps a lease renewed on the page, and reads there what the engines did."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from benchmarks.coserve.account import WorkSample
from benchmarks.coserve.host import ROLLOUT_TOKENS
from benchmarks.coserve.policies import NO_BUDGET_NS, Policy
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, SpanRecord
from rose.runtime.policy.slack import Budgets, LeaseTerms

#: A lease is renewed this often, for that long.
RENEW_NS, TTL_NS = 500_000_000, 3_000_000_000
_SAMPLE_S = 0.02
#: Before a ring of spans can be full.
_DRAIN_NS = 10_000_000_000


@dataclass(slots=True)
class Keeper:
    """A thread between `start` and `stop`. `serving` is the device's page, `rollout` that of the engine lent to."""

    serving: ArbiterPage
    rollout: ArbiterPage
    policy: Policy
    budgets: Budgets
    max_prompt_tokens: int
    spans: list[SpanRecord] = field(default_factory=list)
    samples: list[WorkSample] = field(default_factory=list)
    lost_spans: int = 0
    _tails: dict[Party, int] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Put the policy on the page, and keep it there."""
        never_late = Budgets(NO_BUDGET_NS, NO_BUDGET_NS)
        self.serving.set_budgets(self.budgets if self.policy.slack else never_late, self.max_prompt_tokens)
        for party, page in self._rings():
            self._tails[party] = page.get(party, Field.HEAD)
        if self.policy.lends:
            self._renew()
        self._thread = threading.Thread(target=self._loop, name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the lease back and read what is left in the rings. Safe to call twice."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        self.serving.set_lease(self._number, LeaseTerms(0, 0.0, 0))
        self._drain()
        for party, page in self._rings():
            span = page.open(party, monotonic_ns())
            if span is not None:  # An engine that waits writes its span when it goes on.
                self.spans.append(replace(span, aux=page.get(party, Field.LAST_HOLD)))

    @property
    def _number(self) -> int:
        return self.serving.get(Party.AGENT, Field.LEASE_NUMBER)

    def _loop(self) -> None:
        renewed_ns = drained_ns = monotonic_ns()
        while not self._stopping.wait(_SAMPLE_S):
            now = monotonic_ns()
            requests = sum(self.rollout.get(Party.ROLLOUT, word) for word in (Field.WAITING, Field.RUNNING))
            self.samples.append(WorkSample(now, requests))
            if self.policy.lends and now - renewed_ns >= RENEW_NS:
                renewed_ns = now
                self._renew()
            if now - drained_ns >= _DRAIN_NS:
                drained_ns = now
                self._drain()

    def _renew(self) -> None:
        terms = LeaseTerms(monotonic_ns() + TTL_NS, self.policy.compute_share, ROLLOUT_TOKENS)
        self.serving.set_lease(self._number, terms)

    def _drain(self) -> None:
        for party, page in self._rings():
            spans, self._tails[party], lost = page.drain(party, self._tails[party])
            self.spans += spans
            self.lost_spans += lost

    def _rings(self) -> Sequence[tuple[Party, ArbiterPage]]:
        return (Party.SERVING, self.serving), (Party.ROLLOUT, self.rollout)
