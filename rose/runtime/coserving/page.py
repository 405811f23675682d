"""The arbiter page: a file in shared memory that connects a device's two engines and their agent.

Each party locks its own section, and is its only writer until the party's process ends. A value is an aligned 8-byte
word, stored in one write. Blocks and ring records have checksums. Times are this host's monotonic ns."""

from __future__ import annotations

import fcntl
import mmap
import os
import pwd
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from rose import private_files
from rose.private_files import NotPrivateError
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets, LeaseTerms, ServingLoad


class Party(IntEnum):
    AGENT = 0
    SERVING = 1
    ROLLOUT = 2
    TRAINER = 3


class Span(IntEnum):
    SERVING = 1
    ROLLOUT = 2
    TRAIN = 3
    SYNC = 4
    ACTIVATION = 5  # an engine's memory moved onto the device or off it (aux: `activation.Move`)
    HELD = 6  # a rollout engine had work, but had to wait before a step (aux: `Hold`)
    YIELD = 7  # a rollout step waited between two layers for serving (aux: number of layers left)
    # serving rested and then wanted the device for a request (aux: ns since the server received the request;
    # `latency_ns`: ns since the scheduler got it)
    ARRIVAL = 8
    BESIDE = 9  # rollouts worked beside serving's steps, on credit (aux: ns of their work)


class Field(IntEnum):
    MAGIC = 0
    PID = 1
    HEAD = 2  # spans ever written to this section's ring
    OPEN_KIND = 4
    OPEN_SINCE_NS = 5
    # engines
    WANTED_SINCE_NS = 6  # serving: since when it has wanted the device for itself; 0: it does not
    KV_TOKENS_USED = 7  # held by requests
    KV_TOKENS_CACHED = 8  # held only by the prefix cache
    TOKENS = 9  # rollout: total number of tokens that its steps made
    WAITING = 11
    RUNNING = 12
    WORKED_NS = 13  # rollout: total time of its closed spans on the device
    PREEMPT_NS = 14  # rollout: predicted wait of serving if it wants the device; 0: no step in progress
    LAST_HOLD = 15
    DECODE_ERROR_PPM = 16  # mean relative error of step time predictions
    PREFILL_ERROR_PPM = 17
    STEPS = 18
    FIRST_WANTED_NS = 19  # serving: its first wish for the device after a rollout step last looked
    PREEMPTIBLE = 20  # rollout: 1 if the operating system takes its core as soon as serving wakes
    OTHERS = 21  # agent: number of processes, besides the two engines, that compute on the device
    BROKEN = 22  # the hooks of this engine failed: do not rely on its facts
    KV_TOKENS_TO_COME = 23  # serving: slots that waiting prompts will take
    PRESSED_SINCE_NS = 24  # serving: since when its memory, held or awaited, is past the watermark; 0: it is not
    CUT_WAIT_NS = 25  # serving: total time that it waited for cuts
    LOOKED_NS = 26  # rollout: when one of its steps last looked at the page
    SWAPS = 27  # rollout: number of weight swaps since the engine started
    AWAY_SINCE_NS = 30  # rollout: since when its weights or its KV pool are off the device; 0: they are on it
    WORK_NS = 31  # rollout: total work beside serving's steps, as the time that it takes alone
    WORK_OPENED_NS = 32  # rollout: the value of WORK_NS when the open span began
    LAYER_NS = 33  # rollout: how long a layer of its next step takes alone; 0: unknown
    CREDIT_NS = 34  # serving: the value that WORK_NS may reach beside its steps ...
    CREDIT_UNTIL_NS = 35  # ... and the time until which this credit is valid
    CREDIT_LIMIT = 36  # serving: what limited its last credit, or why it gave none (a `Hold`)
    FACTOR_PPM = 37  # serving: extra time of its steps divided by the rollout work beside them
    DELAYED_NS = 38  # serving: total time by which steps beside such work exceeded their prediction
    REQUESTS = 39  # serving: number of requests ever written to its ring
    IN_FLIGHT = 40  # serving: number of its requests that are not in the ring yet


class Block(IntEnum):
    LEASE = 0  # agent
    TERMS = 1  # agent
    BUDGETS = 2  # agent
    LOAD = 2  # serving
    CUT = 0  # rollout


@dataclass(frozen=True, slots=True)
class SpanRecord:
    kind: Span
    start_ns: int
    end_ns: int
    aux: int = 0
    latency_ns: int = 0  # A yield's delay, or how long a rollout still computed, after serving's wish.


class Finish(IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestRecord:
    arrived_ns: int
    ended_ns: int
    queue_ns: int | None
    ttft_ns: int | None
    tpot_mean_ns: int | None
    tpot_max_ns: int | None
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    finish: int
    status: int | None  # HTTP status of an abort; None: the client left.
    priority: int | None
    lease_number: int  # At its arrival; 0: no lease.


@dataclass(frozen=True, kw_only=True, slots=True)
class CutRecord:
    count: int  # Number of cuts so far.
    lease_number: int
    at_ns: int
    tokens_before: int
    tokens_after: int
    requests: int
    tokens_kept: int
    took_ns: int  #: From serving crossing the watermark, as serving saw it, until the memory is free.
    bytes_returned: int


MAGIC = 0x524F5345_0007
RING_SPANS = 8192
RING_REQUESTS = 8192
_BLOCK_WORDS = 32
_WORDS = 48
_WORDS_PER_SPAN = 6
_WORDS_PER_REQUEST = len(fields(RequestRecord)) + 1
_BLOCKS = 3
_RING_AT = _WORDS + _BLOCKS * _BLOCK_WORDS
_SECTION_WORDS = _RING_AT + RING_SPANS * _WORDS_PER_SPAN
_REQUESTS_AT = len(Party) * _SECTION_WORDS
_BYTES = 8 * (_REQUESTS_AT + RING_REQUESTS * _WORDS_PER_REQUEST)
_PPM = 1_000_000  # shares are stored as integers; a page holds nothing but 8-byte integers
_UNKNOWN = -(1 << 63)  #: Stands for None. No time is this low, and no room for regret.
_READ_TRIES = 16
_CHECK_MASK = 0x7FFF_FFFF_FFFF_FFFF
# a new writer keeps these values: readers of the rings and live requests depend on them
_KEPT = (Field.HEAD, Field.REQUESTS, Field.WORKED_NS, Field.WORK_NS)
_PAGE_USER = "ROSE_PAGE_USER"  # environment variable: another user whose pages this process takes


class PageError(Exception):
    """This process cannot use the file as a page of this version."""


class SectionHeldError(PageError):
    """The section has another writer."""


class _Ring:
    """A ring of checksummed records; new ones overwrite the oldest. `section[head]` counts all records written."""

    def __init__(
        self, section: NDArray[np.int64], head: Field, words: NDArray[np.int64], words_per_record: int
    ) -> None:
        self._section, self._head, self._words, self._length = section, head, words, words_per_record
        self._records = len(words) // words_per_record

    def write(self, words: Sequence[int]) -> None:
        number = int(self._section[self._head])
        at = number % self._records * self._length
        self._words[at : at + self._length] = (*words, _record_check(number, words))
        self._section[self._head] = number + 1

    def drain(self, tail: int) -> tuple[list[list[int]], int, int]:
        """Return (records since `tail`, new tail, number of records that were overwritten unread)."""
        head = int(self._section[self._head])
        lost = max(0, head - tail - self._records)
        records: list[list[int]] = []
        for number in range(tail + lost, head):
            at = number % self._records * self._length
            words: list[int] = self._words[at : at + self._length].tolist()
            if words.pop() != _record_check(number, words):
                if number < head - 1:
                    lost += 1
                    continue
                return records, number, lost  # Part of it is not visible yet: read it next time.
            records.append(words)
        return records, head, lost


class ArbiterPage:
    """A mapped page. Its file is never shortened: `create` replaces a page of another version with a new file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = private_files.open_file(path, users=page_users())
        except NotPrivateError as error:
            raise PageError(f"{error}. A page must belong to the user of this process, or to {_PAGE_USER}") from None
        self._file = os.fdopen(descriptor, "r+b")
        if (stat := os.fstat(descriptor)).st_size != _BYTES:
            self._file.close()
            raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
        self._map = mmap.mmap(descriptor, _BYTES)
        self.inode = stat.st_ino
        self._taken: set[Party] = set()
        # The newest record is kept: most reads find the same words, and comparing them is faster than a new record.
        self._lease: tuple[list[int], LeaseTerms] = [], LeaseTerms()
        self._budgets: tuple[list[int], Budgets] = [], Budgets(0, 0)
        words = np.frombuffer(self._map, dtype=np.int64)
        self._sections = [words[i * _SECTION_WORDS : (i + 1) * _SECTION_WORDS] for i in range(len(Party))]
        self._spans = [_Ring(one, Field.HEAD, one[_RING_AT:], _WORDS_PER_SPAN) for one in self._sections]
        serving, requests = self._sections[Party.SERVING], words[_REQUESTS_AT:]
        self._requests = _Ring(serving, Field.REQUESTS, requests, _WORDS_PER_REQUEST)

    @classmethod
    def create(cls, path: Path) -> ArbiterPage:
        """Open or make an agent's page. Raises PageError if another agent has it, or OSError if there is no room."""
        private_files.make(path.parent)
        try:
            page = cls(path)
            if page.get(Party.AGENT, Field.MAGIC) not in (0, MAGIC):
                raise PageError("of another version")
        except (PageError, FileNotFoundError):
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            try:
                # Not sparse: storing to a page without memory kills an engine.
                os.posix_fallocate(handle, 0, _BYTES)
            except OSError:
                Path(name).unlink()
                raise
            finally:
                os.close(handle)
            Path(name).replace(path)
            page = cls(path)
        page.take(Party.AGENT)
        return page

    @classmethod
    def attach(cls, path: Path, party: Party) -> ArbiterPage:
        """Take `party`'s section of an agent's page, and return the page. Raises PageError or OSError."""
        page = cls(path)
        if (stat := os.fstat(page._file.fileno())).st_blocks * 512 < stat.st_size:
            os.posix_fallocate(page._file.fileno(), 0, stat.st_size)
        if page.get(Party.AGENT, Field.MAGIC) != MAGIC:
            raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
        page.take(party)
        return page

    def take(self, party: Party) -> None:
        """Become the only writer of `party`'s section. Clear the former writer's values. Raises SectionHeldError."""
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, party, 1))
        except OSError:
            pid = self.get(party, Field.PID)
            raise SectionHeldError(f"{self.path}: another process, pid {pid}, writes the section {party.name}")
        self._taken.add(party)
        kept = {field: self.get(party, field) for field in _KEPT}
        self._sections[party][:_RING_AT] = 0
        for field, value in kept.items():
            self.set(party, field, value)
        self.set(party, Field.PID, os.getpid())
        self.set(party, Field.MAGIC, MAGIC)

    def alive(self, party: Party) -> bool:
        """Return whether a process, in any PID namespace, holds the section of `party`."""
        if self._file.closed:
            return False
        answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, party, 1))
        kind: int = struct.unpack(_FLOCK, answer)[0]
        return kind != fcntl.F_UNLCK or party in self._taken  # A lock never blocks its own holder.

    def replaced(self) -> bool:
        try:
            return self.path.stat().st_ino != self.inode
        except OSError:
            return True

    def close(self) -> None:
        """Release the section. The page stays mapped until nothing refers to it."""
        if self._file.closed:
            return
        self._taken.clear()
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))
        self._file.close()

    def get(self, party: Party, field: Field) -> int:
        return int(self._sections[party][field])

    def set(self, party: Party, field: Field, value: int) -> None:
        self._sections[party][field] = value

    def _put(self, party: Party, block: Block, values: Sequence[int]) -> None:
        at = _WORDS + block * _BLOCK_WORDS
        words = [int(self._sections[party][at]) + 1, *values]
        assert len(words) < _BLOCK_WORDS, "a block has room for its facts, its number and its checksum"
        words += [0] * (_BLOCK_WORDS - len(words))
        words[-1] = _checksum(words)
        self._sections[party][at : at + _BLOCK_WORDS] = words

    def _take(self, party: Party, block: Block) -> list[int] | None:
        at = _WORDS + block * _BLOCK_WORDS
        for _ in range(_READ_TRIES):
            words: list[int] = self._sections[party][at : at + _BLOCK_WORDS].tolist()
            if words[0] == 0:
                return None
            if words[-1] == _checksum(words):
                return words[1:-1]
        return None

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        self.set(party, Field.WORK_OPENED_NS, self.get(party, Field.WORK_NS))
        self.set(party, Field.OPEN_KIND, kind)
        self.set(party, Field.OPEN_SINCE_NS, start_ns)

    def close_span(self, party: Party, end_ns: int, aux: int = 0, latency_ns: int = 0) -> None:
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0:
            return
        kind = Span(self.get(party, Field.OPEN_KIND))
        record = SpanRecord(kind, start_ns, end_ns, self._work_ns(party) if kind is Span.BESIDE else aux, latency_ns)
        self.write_span(party, record)
        self._sections[party][Field.OPEN_SINCE_NS] = 0

    def write_span(self, party: Party, record: SpanRecord) -> None:
        """Add a span to the party's ring. `close_span` calls this before it clears the open span. In between, a reader
        sees the span both in the ring and as open, but it never misses the span."""
        self._spans[party].write((record.kind, record.start_ns, record.end_ns, record.aux, record.latency_ns))

    def drain(self, party: Party, tail: int) -> tuple[list[SpanRecord], int, int]:
        """Return (spans since `tail`, new tail, number of spans that were overwritten unread)."""
        records, tail, lost = self._spans[party].drain(tail)
        return [SpanRecord(Span(kind), *times) for kind, *times in records], tail, lost

    def write_request(self, record: RequestRecord) -> None:
        self._requests.write(_words(record))

    def drain_requests(self, tail: int) -> tuple[list[RequestRecord], int, int]:
        records, tail, lost = self._requests.drain(tail)
        return [_record(RequestRecord, words) for words in records], tail, lost

    def open(self, party: Party, now_ns: int) -> SpanRecord | None:
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0 or start_ns >= now_ns:
            return None
        kind = Span(self.get(party, Field.OPEN_KIND))
        if kind is Span.ROLLOUT:
            now_ns = self._rollout_until(start_ns, now_ns)
        return SpanRecord(kind, start_ns, now_ns, self._work_ns(party) if kind is Span.BESIDE else 0)

    def _work_ns(self, party: Party) -> int:
        return max(0, self.get(party, Field.WORK_NS) - self.get(party, Field.WORK_OPENED_NS))

    def _rollout_until(self, start_ns: int, now_ns: int) -> int:
        """Return until when a rollout step surely had the device, usually `now_ns`. A preemptible step may have lost
        its core when serving began to want the device. If it has not looked at the page since, return that moment."""
        wanted = self.get(Party.SERVING, Field.FIRST_WANTED_NS)
        unseen = max(start_ns, self.get(Party.ROLLOUT, Field.LOOKED_NS)) < wanted < now_ns
        return wanted if unseen and self.get(Party.ROLLOUT, Field.PREEMPTIBLE) else now_ns

    def set_lease(self, terms: LeaseTerms) -> None:
        self._put(Party.AGENT, Block.LEASE, _words(terms))

    def lease(self) -> LeaseTerms:
        """Return the lease in force, or terms that lend nothing."""
        words = self._take(Party.AGENT, Block.LEASE)
        if words is None:
            return LeaseTerms()
        if self._lease[0] != words:
            self._lease = words, _record(LeaseTerms, words)
        return self._lease[1]

    def set_terms(self, budgets: Budgets, max_prompt_tokens: int, memory: KvMemory) -> None:
        words = [budgets.ttft_ns, budgets.tpot_ns]
        for priority, one in budgets.classes.items():
            words += [priority, one.ttft_ns, one.tpot_ns]
        self._put(Party.AGENT, Block.BUDGETS, words)
        self._put(Party.AGENT, Block.TERMS, [max_prompt_tokens, *_words(memory)])

    def budgets(self) -> Budgets:
        """Return serving's budgets. Without budgets, every token is due at once, so nothing is lent."""
        words = self._take(Party.AGENT, Block.BUDGETS) or [0, 0]
        if self._budgets[0] != words:
            classes = zip(words[2::3], words[3::3], words[4::3], strict=False)
            promises = {priority: Budgets(*times) for priority, *times in classes if all(times)}
            self._budgets = words, Budgets(*words[:2], classes=promises)
        return self._budgets[1]

    def max_prompt_tokens(self) -> int:
        words = self._take(Party.AGENT, Block.TERMS)
        return 0 if words is None else words[0]

    def memory(self) -> KvMemory | None:
        if (words := self._take(Party.AGENT, Block.TERMS)) is None:
            return None
        to_come = self.get(Party.SERVING, Field.KV_TOKENS_TO_COME)
        return replace(
            _record(KvMemory, words[1:]),
            serving_tokens=self.get(Party.SERVING, Field.KV_TOKENS_USED) + to_come,
            rollout_tokens=self.get(Party.ROLLOUT, Field.KV_TOKENS_USED),
        )

    def serving_wants(self) -> int:
        """Return since when serving wants the device, or 0 if not. Each layer calls this, so it reads only one word."""
        return int(self._sections[Party.SERVING][Field.WANTED_SINCE_NS])

    def credit_ns(self, now_ns: int) -> int:
        """Return how much more work, in ns, rollouts may begin beside serving's steps."""
        serving = self._sections[Party.SERVING]
        if now_ns >= serving[Field.CREDIT_UNTIL_NS]:
            return 0
        return int(serving[Field.CREDIT_NS] - self._sections[Party.ROLLOUT][Field.WORK_NS])

    def serving_works(self) -> bool:
        return not self.get(Party.SERVING, Field.BROKEN) and self.alive(Party.SERVING)

    def set_load(self, load: ServingLoad) -> None:
        self._put(Party.SERVING, Block.LOAD, _words(load))

    def serving_load(self) -> ServingLoad | None:
        words = self._take(Party.SERVING, Block.LOAD)
        return None if words is None else _record(ServingLoad, words)

    def set_cut(self, cut: CutRecord) -> None:
        self._put(Party.ROLLOUT, Block.CUT, _words(cut))

    def cut(self) -> CutRecord | None:
        words = self._take(Party.ROLLOUT, Block.CUT)
        return None if words is None else _record(CutRecord, words)

    def rollout_worked_ns(self, now_ns: int) -> int:
        """Return rollouts' total device time in ns. A living engine's step in progress is included."""
        worked = self.get(Party.ROLLOUT, Field.WORKED_NS)
        open_since = self.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        stepping = open_since and self.get(Party.ROLLOUT, Field.OPEN_KIND) == Span.ROLLOUT
        if stepping and self.alive(Party.ROLLOUT):
            worked += max(0, self._rollout_until(open_since, now_ns) - open_since)
        return worked


def page_users() -> list[int]:
    """Return the user ids of other users whose pages this process may use. Raises PageError."""
    if not (name := os.environ.get(_PAGE_USER)):
        return []
    try:
        return [int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid]
    except KeyError:
        raise PageError(f"{_PAGE_USER} is {name!r}: set it to the name or the number of a user of this host") from None


_R = TypeVar("_R")
_FLOCK = "hhqqi4x"  # `struct flock` of Linux on 64 bits


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)


_TYPES: dict[type, dict[str, Any]] = {
    record: get_type_hints(record) for record in (LeaseTerms, KvMemory, ServingLoad, CutRecord, RequestRecord)
}


def _words(record: Any) -> list[int]:
    words = []
    for name, kind in _TYPES[type(record)].items():
        value = getattr(record, name)
        words.append(_UNKNOWN if value is None else round(value * _PPM) if kind is float else int(value))
    return words


def _record(record: type[_R], words: Sequence[int]) -> _R:
    values: dict[str, Any] = {}
    for (name, kind), word in zip(_TYPES[record].items(), words, strict=False):
        values[name] = (
            None if word == _UNKNOWN else word / _PPM if kind is float else bool(word) if kind is bool else word
        )
    return record(**values)


def _checksum(words: Sequence[int]) -> int:
    return (sum(words[:-1]) & _CHECK_MASK) ^ 0x5A5A


def _record_check(number: int, words: Sequence[int]) -> int:
    return (sum(words) + number) & _CHECK_MASK
