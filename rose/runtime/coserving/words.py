"""What the words of an arbiter page mean, and the records that are read from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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
    #: An engine's memory came to the device or left it (aux: `activation.Move`).
    ACTIVATION = 5
    #: A rollout had work and waited, before a step (aux: `Hold`).
    HELD = 6
    #: A running rollout step waited between layers because serving needed the device (aux: layers still to run).
    YIELD = 7
    #: The moment from which serving wanted the device for a request that found it at rest; it has no length.
    #: aux: ns since the server received the request; `latency_ns`: since it handed it to its scheduler.
    ARRIVAL = 8


class Field(IntEnum):
    """Single words of a section."""

    MAGIC = 0
    PID = 1
    HEAD = 2  # spans ever written to this section's ring
    BEAT_NS = 3  # when the party last came by
    OPEN_KIND = 4
    OPEN_SINCE_NS = 5
    # engines
    WANTED_SINCE_NS = 6  # serving: since when it wants the device for itself; 0: it does not
    KV_TOKENS_USED = 7  # held by requests
    KV_TOKENS_CACHED = 8  # held by the prefix cache alone
    KV_TOKENS_TOTAL = 9
    POLICY_VERSION = 10
    WAITING = 11
    RUNNING = 12
    WORKED_NS = 13  # rollout: time on the device in closed spans, ever
    PREEMPT_NS = 14  # rollout: how long serving is predicted to wait once it wants the device; 0: no step runs
    LAST_HOLD = 15
    DECODE_ERROR_PPM = 16  # mean relative error of step time predictions
    PREFILL_ERROR_PPM = 17
    STEPS = 18
    FIRST_WANTED_NS = 19  # serving: when it first wanted the device since a rollout step last looked
    #: rollout: 1 where the operating system takes the core from it the moment that serving wakes
    PREEMPTIBLE = 20
    KV_BUDGET_TOKENS = 21  # rollout: what it keeps to, after cuts of its own
    BROKEN = 22  # an engine whose hooks failed: nothing it said is to be relied on
    KV_TOKENS_TO_COME = 23  # serving: slots that prompts which wait will take
    PRESSED_SINCE_NS = 24  # serving: since when it holds or waits for memory past the watermark; 0: it does not
    CUT_WAIT_NS = 25  # serving: time that it waited for cuts, ever
    LOOKED_NS = 26  # rollout: when a step of its last looked at the page
    SWAPS = 27  # rollout: how often weights were swapped in since it started
    AWAY_SINCE_NS = 30  # rollout: since when its weights or its KV pool are not on the device; 0: they are


class Block(IntEnum):
    """Facts of a section that are read together."""

    LEASE = 0  # agent
    TERMS = 1  # agent
    LOAD = 2  # serving
    CUT = 0  # rollout


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """[start_ns, end_ns) of one party's time; monotonic nanoseconds.

    `latency_ns`: of a yield, how long after serving's wish it began; of a rollout span that the wish ended, what
    rollouts still computed after it, which is less where the operating system let serving compute meanwhile.
    """

    kind: Span
    start_ns: int
    end_ns: int
    aux: int = 0
    latency_ns: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRecord:
    """The last cut that a rollout engine carried out by itself; `count` of them so far. Tokens are KV slots."""

    count: int
    lease_number: int
    at_ns: int
    tokens_before: int
    tokens_after: int
    requests: int
    tokens_kept: int
    #: From serving crossing the watermark, as serving saw it if it did, to the memory being free again.
    took_ns: int
    bytes_returned: int
