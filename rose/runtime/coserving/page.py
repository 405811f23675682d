"""The arbiter page: one small shared memory file per device, through which two engines and their agent coordinate.

It has a section for each party, and each section has exactly one writer: who holds the section's lock, which the
kernel drops when its holder dies. A single fact is one aligned 8-byte word, which the processor stores whole. Facts
that only mean something together are a block with a checksum, so a reader never takes half of one for the truth,
whatever the order in which stores become visible. A party's spans of work go into a ring beside its words; the agent
drains the rings into the ledger. All times are monotonic nanoseconds of this host.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pwd
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rose import private_files
from rose.private_files import NotPrivateError
from rose.runtime.coserving.words import Block, CutRecord, Field, Party, Span, SpanRecord
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets, LeaseTerms, ServingLoad

__all__ = ["ArbiterPage", "CutRecord", "Field", "PageError", "Party", "SectionHeldError", "Span", "SpanRecord"]

MAGIC = 0x524F5345_0003
RING_SPANS = 8192
_BLOCK_WORDS = 32
_WORDS = 32
_WORDS_PER_SPAN = 6
_BLOCKS = 3
_RING_AT = _WORDS + _BLOCKS * _BLOCK_WORDS
_SECTION_WORDS = _RING_AT + RING_SPANS * _WORDS_PER_SPAN
#: Shares are stored as integers; a page holds nothing but 8-byte integers.
_PPM = 1_000_000
#: What stands for "unknown" where a time is expected: no time, and no room for regret, is ever so low.
_UNKNOWN = -(1 << 63)
_READ_TRIES = 16
_CHECK_MASK = 0x7FFF_FFFF_FFFF_FFFF
#: What others count from: a ring's reader may have been here before its writer, and what rollouts took from a request
#: that is in flight while their engine is replaced is what this grew by since it came.
_KEPT = (Field.HEAD, Field.WORKED_NS)
#: Names the user whose pages this process takes beside its own user's.
_PAGE_USER = "ROSE_PAGE_USER"


class PageError(Exception):
    """The file is not an arbiter page of this version, another user may write to it, or somebody else writes the
    section."""


class SectionHeldError(PageError):
    """Somebody else writes the section."""


class ArbiterPage:
    """A mapped page. `take` makes its holder the writer of a section; without one it is read only by convention.

    A page is never truncated: `create` takes up one that is there, so that those who have it mapped go on with it,
    and puts a new file in the place of one of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = len(Party) * _SECTION_WORDS * 8
        try:
            descriptor = private_files.open_file(path, users=page_users())
        except NotPrivateError as error:
            raise PageError(f"{error}. A page has to be of the user of this process, or of {_PAGE_USER}") from None
        self._file = os.fdopen(descriptor, "r+b")
        if (stat := os.fstat(descriptor)).st_size != size:
            self._file.close()
            raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
        self._map = mmap.mmap(descriptor, size)
        self.inode = stat.st_ino
        self._taken: set[Party] = set()
        words = np.frombuffer(self._map, dtype=np.int64)
        self._sections = [words[i * _SECTION_WORDS : (i + 1) * _SECTION_WORDS] for i in range(len(Party))]

    @classmethod
    def create(cls, path: Path) -> ArbiterPage:
        """The agent's page: the one that is there, or a new one. Raises PageError if another agent has it, OSError if
        there is no room for it."""
        private_files.make(path.parent)
        try:
            page = cls(path)
            if page.get(Party.AGENT, Field.MAGIC) not in (0, MAGIC):
                raise PageError("of another version")
        except (PageError, FileNotFoundError):
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
            try:
                # Not sparse: where memory has run out, a store to a page without any kills the engine that makes it.
                os.posix_fallocate(handle, 0, len(Party) * _SECTION_WORDS * 8)
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
        """A page that an agent made, with `party`'s section taken. Raises PageError, or OSError such as
        FileNotFoundError."""
        page = cls(path)
        if (stat := os.fstat(page._file.fileno())).st_blocks * 512 < stat.st_size:
            os.posix_fallocate(page._file.fileno(), 0, stat.st_size)
        if page.get(Party.AGENT, Field.MAGIC) != MAGIC:
            raise PageError(f"{path} is not an arbiter page of this version: remove it and restart the agent")
        page.take(party)
        return page

    def take(self, party: Party) -> None:
        """Become the one writer of a section, and clear what its last one left. Raises SectionHeldError."""
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, party, 1))
        except OSError:
            pid = self.get(party, Field.PID)
            raise SectionHeldError(
                f"{self.path}: another process, pid {pid}, writes the section {party.name}"
            ) from None
        self._taken.add(party)
        kept = {field: self.get(party, field) for field in _KEPT}
        self._sections[party][:_RING_AT] = 0
        for field, value in kept.items():
            self.set(party, field, value)
        self.set(party, Field.PID, os.getpid())
        self.set(party, Field.MAGIC, MAGIC)

    def alive(self, party: Party) -> bool:
        """Whether a process has the section; the kernel knows, in whatever PID namespace it runs."""
        if self._file.closed:
            return False
        answer = fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, party, 1))
        kind: int = struct.unpack(_FLOCK, answer)[0]
        # A lock never stands in the way of its own holder.
        return kind != fcntl.F_UNLCK or party in self._taken

    def replaced(self) -> bool:
        """Whether another file lies under the page's name now, or none."""
        try:
            return self.path.stat().st_ino != self.inode
        except OSError:
            return True

    def close(self) -> None:
        """Give up the section. The mapping goes with the last reference to it. Safe to call twice."""
        if self._file.closed:
            return
        self._taken.clear()
        # A mapping keeps its file, and with it the lock, for as long as anything refers to it.
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, 0, 0))
        self._file.close()

    # ------------------------------------------------------------------ words and blocks

    def get(self, party: Party, field: Field) -> int:
        return int(self._sections[party][field])

    def set(self, party: Party, field: Field, value: int) -> None:
        self._sections[party][field] = value

    def _put(self, party: Party, block: Block, values: Sequence[int]) -> None:
        at = _WORDS + block * _BLOCK_WORDS
        words = [int(self._sections[party][at]) + 1, *values]
        words += [0] * (_BLOCK_WORDS - len(words))
        words[-1] = _checksum(words)
        self._sections[party][at : at + _BLOCK_WORDS] = words

    def _take(self, party: Party, block: Block) -> list[int] | None:
        """A block as it was written whole; None if there never was one, or its writer stopped in the middle."""
        at = _WORDS + block * _BLOCK_WORDS
        for _ in range(_READ_TRIES):
            words: list[int] = self._sections[party][at : at + _BLOCK_WORDS].tolist()
            if words[0] == 0:
                return None
            if words[-1] == _checksum(words):
                return words[1:-1]
        return None

    # ------------------------------------------------------------------ spans

    def open_span(self, party: Party, kind: Span, start_ns: int) -> None:
        """Announce work in progress, so that a slice that ends inside it can count its share."""
        self.set(party, Field.OPEN_KIND, kind)
        self.set(party, Field.OPEN_SINCE_NS, start_ns)

    def close_span(self, party: Party, end_ns: int, aux: int = 0, latency_ns: int = 0) -> SpanRecord | None:
        """Write the announced span to the ring. None if none was open."""
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0:
            return None
        record = SpanRecord(Span(self.get(party, Field.OPEN_KIND)), start_ns, end_ns, aux, latency_ns)
        self.write_span(party, record)
        self._sections[party][Field.OPEN_SINCE_NS] = 0
        return record

    def write_span(self, party: Party, record: SpanRecord) -> None:
        """A span into the ring. It is published before it is withdrawn as open: a reader may see it twice, never
        not at all."""
        section = self._sections[party]
        head = int(section[Field.HEAD])
        at = _RING_AT + (head % RING_SPANS) * _WORDS_PER_SPAN
        words = (record.kind, record.start_ns, record.end_ns, record.aux, record.latency_ns)
        section[at : at + _WORDS_PER_SPAN] = (*words, _span_check(head, words))
        section[Field.HEAD] = head + 1

    def drain(self, party: Party, tail: int) -> tuple[list[SpanRecord], int, int]:
        """Spans written since `tail`: (spans, new tail, spans overwritten before they could be read)."""
        section = self._sections[party]
        head = int(section[Field.HEAD])
        lost = max(0, head - tail - RING_SPANS)
        spans: list[SpanRecord] = []
        for index in range(tail + lost, head):
            at = _RING_AT + (index % RING_SPANS) * _WORDS_PER_SPAN
            *words, check = (int(word) for word in section[at : at + _WORDS_PER_SPAN])
            if check != _span_check(index, words):
                if index < head - 1:
                    lost += 1
                    continue
                return spans, index, lost  # Not all of it is visible yet: the next time.
            kind, start_ns, end_ns, aux, latency_ns = words
            spans.append(SpanRecord(Span(kind), start_ns, end_ns, aux, latency_ns))
        return spans, head, lost

    def open(self, party: Party, now_ns: int) -> SpanRecord | None:
        """The span in progress, as if it ended at `now_ns`."""
        start_ns = self.get(party, Field.OPEN_SINCE_NS)
        if start_ns == 0 or start_ns >= now_ns:
            return None
        kind = Span(self.get(party, Field.OPEN_KIND))
        if kind is Span.ROLLOUT:
            now_ns = self._rollout_until(start_ns, now_ns)
        return SpanRecord(kind, start_ns, now_ns)

    def _rollout_until(self, start_ns: int, now_ns: int) -> int:
        """Until when a rollout step that began at `start_ns` can have had the device, if it has not ended.

        A core that serving took stays taken until the step looks again, whatever serving wants meanwhile.
        """
        wanted = self.get(Party.SERVING, Field.FIRST_WANTED_NS)
        unseen = max(start_ns, self.get(Party.ROLLOUT, Field.LOOKED_NS)) < wanted < now_ns
        return wanted if unseen and self.get(Party.ROLLOUT, Field.PREEMPTIBLE) else now_ns

    # ------------------------------------------------------------------ what the agent says

    def set_lease(self, terms: LeaseTerms) -> None:
        """Publish the lease's terms, or `LeaseTerms()` for none."""
        values = (
            terms.number,
            terms.expires_ns,
            terms.kv_budget_tokens,
            round(terms.compute_share * _PPM),
            round(terms.regret_share * _PPM),
            int(terms.frozen),
            terms.policy,
        )
        self._put(Party.AGENT, Block.LEASE, values)

    def lease(self) -> LeaseTerms:
        """The lease in force. A page with none, or half of one, lends nothing."""
        words = self._take(Party.AGENT, Block.LEASE)
        if words is None:
            return LeaseTerms()
        return LeaseTerms(
            number=words[0],
            expires_ns=words[1],
            kv_budget_tokens=words[2],
            compute_share=words[3] / _PPM,
            regret_share=words[4] / _PPM,
            frozen=bool(words[5]),
            policy=words[6],
        )

    def set_terms(self, budgets: Budgets, max_prompt_tokens: int, memory: KvMemory) -> None:
        """Publish what serving was promised, and how the device's KV memory is divided. Of `memory` the two amounts
        that are held are not kept: each engine says its own."""
        self._put(
            Party.AGENT,
            Block.TERMS,
            (
                budgets.ttft_ns,
                budgets.tpot_ns,
                max_prompt_tokens,
                memory.device_bytes,
                memory.serving_bytes_per_token,
                memory.rollout_bytes_per_token,
                round(memory.headroom * _PPM),
                round(memory.high_watermark * _PPM),
            ),
        )

    def budgets(self) -> Budgets | None:
        words = self._take(Party.AGENT, Block.TERMS)
        return None if words is None else Budgets(words[0], words[1])

    def max_prompt_tokens(self) -> int:
        words = self._take(Party.AGENT, Block.TERMS)
        return 0 if words is None else words[2]

    def memory(self) -> KvMemory | None:
        """The device's KV memory as requests hold it now, with what serving's waiting prompts will take."""
        words = self._take(Party.AGENT, Block.TERMS)
        if words is None:
            return None
        return KvMemory(
            device_bytes=words[3],
            serving_bytes_per_token=words[4],
            rollout_bytes_per_token=words[5],
            serving_tokens=self.get(Party.SERVING, Field.KV_TOKENS_USED)
            + self.get(Party.SERVING, Field.KV_TOKENS_TO_COME),
            rollout_tokens=self.get(Party.ROLLOUT, Field.KV_TOKENS_USED),
            headroom=words[6] / _PPM,
            high_watermark=words[7] / _PPM,
        )

    # ------------------------------------------------------------------ what engines say

    def serving_wants(self) -> int:
        """Since when serving wants the device for itself, 0 if it does not: one load, for every layer of a step."""
        return int(self._sections[Party.SERVING][Field.WANTED_SINCE_NS])

    def serving_works(self) -> bool:
        """Whether a serving engine has its section, and the plugin in it has not failed."""
        return not self.get(Party.SERVING, Field.BROKEN) and self.alive(Party.SERVING)

    def set_load(self, load: ServingLoad) -> None:
        self._put(
            Party.SERVING,
            Block.LOAD,
            [_UNKNOWN if (value := getattr(load, name)) is None else int(value) for name in _LOAD],
        )

    def serving_load(self) -> ServingLoad | None:
        """What serving is doing; None if it never said, or died in the middle of saying it."""
        words = self._take(Party.SERVING, Block.LOAD)
        if words is None:
            return None
        values: dict[str, Any] = dict(zip(_LOAD, words, strict=False))
        for name in [name for name, word in values.items() if word == _UNKNOWN]:
            values[name] = None
        return ServingLoad(**values)

    def set_cut(self, cut: CutRecord) -> None:
        self._put(Party.ROLLOUT, Block.CUT, [getattr(cut, name) for name in _CUT])

    def cut(self) -> CutRecord | None:
        """The last cut that the rollout engine carried out; None if there was none."""
        words = self._take(Party.ROLLOUT, Block.CUT)
        return None if words is None else CutRecord(**dict(zip(_CUT, words, strict=False)))

    def rollout_worked_ns(self, now_ns: int) -> int:
        """Device time that rollouts took, ever, the step in progress included unless its engine has died."""
        worked = self.get(Party.ROLLOUT, Field.WORKED_NS)
        open_since = self.get(Party.ROLLOUT, Field.OPEN_SINCE_NS)
        stepping = open_since and self.get(Party.ROLLOUT, Field.OPEN_KIND) == Span.ROLLOUT
        if stepping and self.alive(Party.ROLLOUT):
            worked += max(0, self._rollout_until(open_since, now_ns) - open_since)
        return worked


def page_users(environment: Mapping[str, str] = os.environ) -> list[int]:
    """Return the users whose pages this process takes beside its own user's. Raises PageError."""
    if not (name := environment.get(_PAGE_USER)):
        return []
    try:
        return [int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid]
    except KeyError:
        raise PageError(f"{_PAGE_USER} is {name!r}: name a user of this host, or a user's number") from None


#: `struct flock` of Linux on 64 bits.
_FLOCK = "hhqqi4x"


def _flock(kind: int, start: int, length: int) -> bytes:
    """A lock on `length` bytes from `start`; length 0 is all of the file."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)


_LOAD = tuple(ServingLoad.__dataclass_fields__)
_CUT = tuple(CutRecord.__dataclass_fields__)
assert max(len(_LOAD), len(_CUT)) <= _BLOCK_WORDS - 2, "a block has room for its facts, its number and its checksum"


def _checksum(words: Sequence[int]) -> int:
    return (sum(words[:-1]) & _CHECK_MASK) ^ 0x5A5A


def _span_check(index: int, words: Sequence[int]) -> int:
    return (sum(words) + index) & _CHECK_MASK
