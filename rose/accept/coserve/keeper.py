"""Policies for sharing a device, and a Keeper that renews the lease and reads the engines' spans of device time."""

import threading
from dataclasses import dataclass, field, replace

from rose.clock import monotonic_ns
from rose.config import CoservingConfig
from rose.runtime.coserving.page import ArbiterPage, Field, Party, SpanRecord
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.policies import NAMES
from rose.runtime.policy.slack import Budgets, LeaseTerms

RENEW_NS, TTL_NS = 500_000_000, 3_000_000_000  # A lease is renewed this often, for that long.
_SAMPLE_S = 0.02
_PARTIES = (Party.SERVING, Party.ROLLOUT)
_DRAIN_NS = 10_000_000_000  # Before a ring of spans can be full.
#: The kernel's weights of niceness 0 and SCHED_IDLE (sched(7), `sched_prio_to_weight`); a step is 1.25.
_WEIGHT, _IDLE_WEIGHT = 1024, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    lends: bool = True
    decides: str = "rose"
    compute_share: float = 1.0
    stretch: float = 1.0
    slack_share: float = 0.0
    nice: int = 19
    idle_class: bool = False  # The kernel's class SCHED_IDLE.

    @property
    def core_share(self) -> float:
        """Return the share of a core that the kernel gives the rollout engine while both engines want the core."""
        weight = _IDLE_WEIGHT if self.idle_class else _WEIGHT / 1.25**self.nice
        return weight / (weight + _WEIGHT)


SOLO, IDLE, ROSE, ROSE_SLACK = "solo", "idle", "rose", "rose_slack"
ROSE_LAYERS, SHARE_ALL = "rose_layers", "share_all"
_AS_LENT = Policy(idle_class=True)  # As a lent engine runs on CPU cores.
POLICIES = {
    SOLO: Policy(lends=False),
    IDLE: _AS_LENT,
    ROSE: replace(_AS_LENT, stretch=CoservingConfig().stretch, slack_share=CoservingConfig().slack_share),
    ROSE_SLACK: replace(_AS_LENT, stretch=100.0, slack_share=1.0),
    ROSE_LAYERS: Policy(),  # No kernel takes a core away.
    SHARE_ALL: Policy(decides="share_all", nice=0),
    "static_split": Policy(decides="static_split", compute_share=0.5, nice=0),
}


@dataclass(slots=True)
class Keeper:
    page: ArbiterPage
    memory: KvMemory
    policy: Policy
    budgets: Budgets
    max_prompt_tokens: int
    rollout_tokens: int
    spans: list[SpanRecord] = field(default_factory=list)
    samples: list[tuple[int, int]] = field(default_factory=list)  #: (monotonic ns, requests in the rollout engine)
    lost_spans: int = 0
    _tails: dict[Party, int] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _number: int = 0

    def start(self) -> None:
        self.page.set_terms(self.budgets, self.max_prompt_tokens, self.memory)
        for party in _PARTIES:
            self._tails[party] = self.page.get(party, Field.HEAD)
        self._number = self.page.lease().number + 1
        self._renew()
        self._thread = threading.Thread(target=self._loop, name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the lease, then read the engines' last spans from the arbiter page. A second call does nothing."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        self.page.set_lease(LeaseTerms(number=self._number))
        self._drain()
        for party in _PARTIES:
            span = self.page.open(party, monotonic_ns())
            if span is not None:  # An engine that waits writes its span when it continues.
                self.spans.append(replace(span, aux=self.page.get(party, Field.LAST_HOLD)))

    def _loop(self) -> None:
        renewed_ns = drained_ns = monotonic_ns()
        while not self._stopping.wait(_SAMPLE_S):
            now_ns = monotonic_ns()
            requests = sum(self.page.get(Party.ROLLOUT, word) for word in (Field.WAITING, Field.RUNNING))
            self.samples.append((now_ns, requests))
            if now_ns - renewed_ns >= RENEW_NS:
                renewed_ns = now_ns
                self._renew()
            if now_ns - drained_ns >= _DRAIN_NS:
                drained_ns = now_ns
                self._drain()

    def _renew(self) -> None:
        if not self.policy.lends:
            return
        terms = LeaseTerms(
            number=self._number,
            expires_ns=monotonic_ns() + TTL_NS,
            compute_share=self.policy.compute_share,
            kv_budget_tokens=self.rollout_tokens,
            regret_share=CoservingConfig().regret_share,
            policy=NAMES.index(self.policy.decides),
            stretch=self.policy.stretch,
            slack_share=self.policy.slack_share,
        )
        self.page.set_lease(terms)

    def _drain(self) -> None:
        for party in _PARTIES:
            spans, self._tails[party], lost = self.page.drain(party, self._tails[party])
            self.spans += spans
            self.lost_spans += lost
