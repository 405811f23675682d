"""The arbiter page: one small shared memory file per device, through which two engines and their agent coordinate.

It has a section for each party, and each section has exactly one writer, so no lock is needed: a field is one aligned
8-byte word, which the processor stores whole. A party's spans of work go into a ring beside its fields; the agent
drains the rings into the ledger. All times are monotonic nanoseconds of this host.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np

from rose.runtime.policy.slack import Budgets, LeaseTerms, ServingLoad

MAGIC = 0x524F5345_0001
RING_SPANS = 8192
_FIELDS = 32
_WORDS_PER_SPAN = 4
_SECTION_WORDS = _FIELDS + RING_SPANS * _WORDS_PER_SPAN
#: compute_share is stored as an integer; a page holds nothing but 8-byte integers.
_SHARE_SCALE = 1_000_000


class Party(IntEnum):
    """Who writes a section."""

    AGENT = 0
    SERVING = 1
    ROLLOUT = 2
    TRAINER = 3


class Span(IntEnum):
    """What a stretch of time was."""

    SERVING = 1
    ROLLOUT = 2
    TRAIN = 3
    SYNC = 4
    ACTIVATION = 5
    #: A rollout had work and waited, before a step (aux: `Hold`).
    HELD = 6
    #: A running rollout step waited between layers because serving needed the device (aux: layers still to run).
    YIELD = 7


class Field(IntEnum):
    """Words of a section. The agent's first, then an engine's."""

    MAGIC = 0
    PID = 1
    HEAD = 2  # spans ever written to this section's ring
    # agent
    LEASE_EXPIRES_NS = 3
    LEASE_NUMBER = 4
    KV_BUDGET_TOKENS = 5
    COMPUTE_SHARE_PPM = 6
    TTFT_BUDGET_NS = 7
    TPOT_BUDGET_NS = 8
    MAX_PROMPT_TOKENS = 9
    # engines
    IN_STEP_SINCE_NS = 10
    WAITING = 11
    WAITING_PREFILL_NS = 12
    EARLIEST_ARRIVAL_NS = 13
    RUNNING = 14
    OLDEST_TOKEN_NS = 15
    DECODE_NS = 16
    LARGEST_PREFILL_NS = 17
    KV_TOKENS_USED = 18
    KV_TOKENS_TOTAL = 19
    POLICY_VERSION = 20
    OPEN_KIND = 21
    OPEN_SINCE_NS = 22
    LAST_HOLD = 23


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """[start_ns, end_ns) of one party's time; monotonic nanoseconds."""

    kind: Span
    start_ns: int
    end_ns: int
    aux: int


class PageError(Exception):
    """The file is not an arbiter page of this version."""


class ArbiterPage:
    """A mapped page. `create` makes a zeroed one (the agent), `attach` maps an existing one (engines, trainer)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        size = len(Party) * _SECTION_WORDS * 8
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != size:
                raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
            self._map = mmap.mmap(file.fileno(), size)
        words = np.frombuffer(self._map, dtype=np.int64)
        self._sections = [words[i * _SECTION_WORDS : (i + 1) * _SECTION_WORDS] for i in range(len(Party))]

    @classmethod
    def create(cls, path: Path) -> ArbiterPage:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(len(Party) * _SECTION_WORDS * 8)
        page = cls(path)
        page.set(Party.AGENT, Field.MAGIC, MAGIC)
        page.set(Party.AGENT, Field.PID, os.getpid())
        return page

    @classmethod
    def attach(cls, path: Path, party: Party) -> ArbiterPage:
        page = cls(path)
        if page.get(Party.AGENT, Field.MAGIC) != MAGIC:
            raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
        page.set(party, Field.PID, os.getpid())
        page.set(party, Field.MAGIC, MAGIC)
        return page

    def get(self, party: Party, field: Field) -> int:
        return int(self._sections[party][field])

    def set(self, party: Party, field: Field, value: int) -> None:
        self._sections[party][field] = value

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        """Announce work in progress, so that a slice that ends inside it can count its share."""
        self.set(party, Field.OPEN_KIND, kind)
        self.set(party, Field.OPEN_SINCE_NS, start_ns)

    def close_span(self, party: Party, end_ns: int, aux: int = 0) -> SpanRecord | None:
        """Write the announced span to the ring. None if none was open."""
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0:
            return None
        record = SpanRecord(Span(self.get(party, Field.OPEN_KIND)), start_ns, end_ns, aux)
        section = self._sections[party]
        head = int(section[Field.HEAD])
        at = _FIELDS + (head % RING_SPANS) * _WORDS_PER_SPAN
        section[at : at + _WORDS_PER_SPAN] = (record.kind, start_ns, end_ns, aux)
        # The span is published before it is withdrawn as open: a reader may see it twice, never not at all.
        section[Field.HEAD] = head + 1
        section[Field.OPEN_SINCE_NS] = 0
        return record

    def drain(self, party: Party, tail: int) -> tuple[list[SpanRecord], int, int]:
        """Spans written since `tail`: (spans, new tail, spans overwritten before they could be read)."""
        section = self._sections[party]
        head = int(section[Field.HEAD])
        lost = max(0, head - tail - RING_SPANS)
        spans = []
        for index in range(tail + lost, head):
            at = _FIELDS + (index % RING_SPANS) * _WORDS_PER_SPAN
            kind, start, end, aux = (int(word) for word in section[at : at + _WORDS_PER_SPAN])
            spans.append(SpanRecord(Span(kind), start, end, aux))
        return spans, head, lost

    def open(self, party: Party, now_ns: int) -> SpanRecord | None:
        """The span in progress, as if it ended at `now_ns`."""
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0 or start_ns >= now_ns:
            return None
        return SpanRecord(Span(self.get(party, Field.OPEN_KIND)), start_ns, now_ns, 0)

    def lease(self) -> LeaseTerms:
        return LeaseTerms(
            expires_ns=self.get(Party.AGENT, Field.LEASE_EXPIRES_NS),
            compute_share=self.get(Party.AGENT, Field.COMPUTE_SHARE_PPM) / _SHARE_SCALE,
            kv_budget_tokens=self.get(Party.AGENT, Field.KV_BUDGET_TOKENS),
        )

    def set_lease(self, number: int, terms: LeaseTerms) -> None:
        """Publish lease terms. The expiry is written last: terms of a new lease are never read with an old expiry."""
        if number != self.get(Party.AGENT, Field.LEASE_NUMBER):
            self.set(Party.AGENT, Field.LEASE_EXPIRES_NS, 0)
        self.set(Party.AGENT, Field.LEASE_NUMBER, number)
        self.set(Party.AGENT, Field.KV_BUDGET_TOKENS, terms.kv_budget_tokens)
        self.set(Party.AGENT, Field.COMPUTE_SHARE_PPM, round(terms.compute_share * _SHARE_SCALE))
        self.set(Party.AGENT, Field.LEASE_EXPIRES_NS, terms.expires_ns)

    def set_budgets(self, budgets: Budgets, max_prompt_tokens: int) -> None:
        self.set(Party.AGENT, Field.TTFT_BUDGET_NS, budgets.ttft_ns)
        self.set(Party.AGENT, Field.TPOT_BUDGET_NS, budgets.tpot_ns)
        self.set(Party.AGENT, Field.MAX_PROMPT_TOKENS, max_prompt_tokens)

    def budgets(self) -> Budgets:
        return Budgets(self.get(Party.AGENT, Field.TTFT_BUDGET_NS), self.get(Party.AGENT, Field.TPOT_BUDGET_NS))

    def serving_in_step(self) -> bool:
        return int(self._sections[Party.SERVING][Field.IN_STEP_SINCE_NS]) != 0

    def serving_load(self) -> ServingLoad:
        words = self._sections[Party.SERVING]
        return ServingLoad(
            in_step=int(words[Field.IN_STEP_SINCE_NS]) != 0,
            waiting=int(words[Field.WAITING]),
            waiting_prefill_ns=int(words[Field.WAITING_PREFILL_NS]),
            earliest_arrival_ns=int(words[Field.EARLIEST_ARRIVAL_NS]),
            running=int(words[Field.RUNNING]),
            oldest_token_ns=int(words[Field.OLDEST_TOKEN_NS]),
            decode_ns=int(words[Field.DECODE_NS]),
            largest_prefill_ns=int(words[Field.LARGEST_PREFILL_NS]),
        )
