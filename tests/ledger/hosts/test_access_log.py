"""The access log of a gateway, with a real writer, on a disk that may refuse."""

from __future__ import annotations

import hashlib
import time

import pytest

from rose.events import Access
from rose.ledger.access import DENIALS_S, OTHER_PEERS, AccessLog, statement
from rose.ledger.layout import LedgerError
from rose.ledger.reading.query import query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter


@pytest.fixture
def root(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def writer(root):
    with LedgerWriter.open(root, "gateway", "gateway", flush_interval_s=0.1) as writer:
        yield writer


@pytest.fixture
def log(writer):
    log = AccessLog(lambda: writer)
    yield log
    log.close()


def denied(who="(unknown token)", peer="10.0.0.1:5", action="token_denied"):
    return Access(who=who, peer=peer, action=action, outcome="refused")


def rows(root, columns="who, peer, action, outcome, count"):
    return query(root, f"SELECT {columns} FROM access ORDER BY writer, seq").rows


def test_a_read_is_on_disk_when_write_returns(root, log):
    log.write(Access(who="finance", peer="10.0.0.1:5", action="query", outcome="ok", result_rows=3, **statement("x")))
    assert rows(root, "who, result_rows, statement, count") == [("finance", 3, "x", 1)]


@pytest.mark.long
def test_a_flood_of_refusals_becomes_one_event_a_second_for_a_peer(root, writer):
    log = AccessLog(lambda: writer)
    began = time.monotonic()
    while time.monotonic() - began < 2.5 * DENIALS_S:
        for port in range(200):
            log.count(denied(peer=f"10.0.0.1:{port}"))
    log.count(denied(peer="10.0.0.2:1"))
    log.close()
    took = time.monotonic() - began
    found = query(
        root, "SELECT peer LIKE '10.0.0.1:%' AS one, count(*), sum(count) FROM access GROUP BY ALL ORDER BY 1"
    )
    assert found.rows[0] == (False, 1, 1)
    _, events, refusals = found.rows[1]
    # The last one is written at the end, whatever the time.
    assert 2 <= events <= took / DENIALS_S + 1
    assert refusals % 200 == 0
    assert refusals > 200


def test_more_peers_than_can_be_counted_are_counted_together(root, log):
    for number in range(1500):
        log.count(denied(peer=f"10.0.{number // 256}.{number % 256}:5"))
    log.close()
    assert query(root, "SELECT count(*), sum(count) FROM access").rows == [(1025, 1500)]
    assert query(root, f"SELECT count FROM access WHERE peer = '{OTHER_PEERS}'").rows == [(476,)]


def test_the_first_look_is_on_disk_and_those_after_it_are_counted(root, writer):
    log = AccessLog(lambda: writer)
    look = Access(who="finance", peer="10.0.0.1:5", action="info", outcome="ok")
    for _ in range(5):
        log.write_or_count(look)
    assert rows(root, "who, count") == [("finance", 1)]
    log.close()
    assert rows(root, "who, count") == [("finance", 1), ("finance", 4)]


class Between:
    """A lock before which something else happens when it is taken for the second time."""

    def __init__(self, lock, act):
        self._lock, self._act, self._count = lock, act, 0

    def __enter__(self):
        self._count += 1
        if self._count == 2:
            self._act()
        return self._lock.__enter__()

    def __exit__(self, *args):
        return self._lock.__exit__(*args)


@pytest.mark.parametrize("looks", [1, 2])
def test_a_look_while_others_are_written_is_counted(root, writer, looks):
    look = Access(who="finance", peer="10.0.0.1:5", action="info", outcome="ok")
    log = AccessLog(lambda: writer)
    for _ in range(looks):
        log.write_or_count(look)
    log._closing.set()
    log._thread.join()
    lock = log._mutex

    def another():
        between, log._mutex = log._mutex, lock
        log.write_or_count(look)
        log._mutex = between

    log._mutex = Between(lock, another)
    log._flush(float("inf"))
    log._mutex = lock
    log.close()
    assert query(root, "SELECT sum(count) FROM access").rows == [(looks + 1,)]


def test_a_look_that_was_given_stays_counted_though_the_first_was_refused(root, writer):
    look = Access(who="finance", peer="10.0.0.1:5", action="info", outcome="ok")
    log = AccessLog(lambda: writer)

    def refused(_event):
        log.write_or_count(look)
        raise LedgerError("the disk is full")

    log.write = refused
    with pytest.raises(LedgerError, match="the disk is full"):
        log.write_or_count(look)
    log.close()
    assert rows(root, "who, count") == [("finance", 1)]


def test_while_the_disk_refuses_nothing_is_read_and_refusals_are_kept(root, writer):
    log = AccessLog(lambda: writer)
    # A file where the folder of the segments was: the disk of a test refuses nobody who is root.
    folder, aside = root / "live" / "gateway", root.with_name("aside")
    folder.rename(aside)
    folder.write_bytes(b"")
    with pytest.raises(LedgerError):
        log.write(Access(who="finance", action="query", outcome="ok"))
    with pytest.raises(LedgerError, match="cannot write to"):
        log.check()
    for _ in range(3):
        log.count(denied())
    time.sleep(1.5 * DENIALS_S)
    folder.unlink()
    aside.rename(folder)
    deadline = time.monotonic() + 30
    while writer.failure is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    log.check()
    log.close()
    # The read that was refused is on record as soon as it can be: an entry too many, never one too few.
    assert rows(root, "who, count") == [("finance", 1), ("(unknown token)", 3)]
    writer.close()
    assert verify(root).ok


def test_a_statement_is_kept_in_part_with_the_hash_of_all_of_it():
    text = "SELECT '" + "é" * 5000 + "'"
    kept = statement(text)
    assert kept["statement"] == text[:1000]
    assert kept["statement_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert statement(None) == {}


@pytest.mark.parametrize("text", ["\x00", "a\ud800b", "\udfff" * 2000, "", "\u202e \x1b[2J"])
def test_any_text_that_can_be_sent_can_be_stored(root, log, text):
    log.write(Access(who="finance", action="query", outcome="refused", **statement(text)))
    ((stored,),) = rows(root, "statement")
    assert stored == text[:1000].encode(errors="backslashreplace").decode()
