import hashlib

import pytest

from rose.events import Access
from rose.ledger import access
from rose.ledger.access import OTHER_PEERS, AccessLog, statement
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask
from tests.runtime.conftest import until


@pytest.fixture
def root(tmp_path):
    return tmp_path / "ledger"


@pytest.fixture
def writer(root):
    with LedgerWriter.open(root, "gateway", "gateway", flush_interval_s=0.1) as writer:
        yield writer


@pytest.fixture
def log(writer, monkeypatch):
    monkeypatch.setattr(access, "COUNTED_S", 1000.0)
    log = AccessLog(lambda: writer)
    yield log
    log.close()


def denied(who="(unknown token)", peer="10.0.0.1:5", action="token_denied"):
    return Access(who=who, peer=peer, action=action, outcome="refused")


def rows(root, columns="who, peer, action, outcome, count"):
    return ask(root, f"SELECT {columns} FROM access ORDER BY writer, seq")


def test_more_peers_than_can_be_counted_are_counted_together(root, log):
    for number in range(1500):
        log.count(denied(peer=f"10.0.{number // 256}.{number % 256}:{number}"))
    for port in range(200):
        log.count(denied(peer=f"10.0.0.1:{port}"))
    log.close()
    assert ask(root, "SELECT count(*), sum(count) FROM access") == [(1025, 1700)]
    assert ask(root, f"SELECT count FROM access WHERE peer = '{OTHER_PEERS}'") == [(476,)]
    assert ask(root, "SELECT count FROM access WHERE peer LIKE '10.0.0.1:%'") == [(201,)]


def test_while_the_disk_refuses_nothing_is_read_and_refusals_are_kept(root, writer, log):
    # A file where the folder of the segments was: the disk of a test refuses nobody who is root.
    folder, aside = root / "live" / "gateway", root.with_name("aside")
    folder.rename(aside)
    folder.write_bytes(b"")
    with pytest.raises(LedgerError):
        writer.record(Access(who="finance", action="query", outcome="ok"))
    assert "cannot write to" in writer.failure
    for _ in range(3):
        log.count(denied())
    log._flush()
    folder.unlink()
    aside.rename(folder)
    until(lambda: writer.failure is None, 30)
    log.close()
    # The read that was refused is on record as soon as it can be: an entry too many, never one too few.
    assert rows(root, "who, count") == [("finance", 1), ("(unknown token)", 3)]
    writer.close()
    assert Ledger(root).verify().doubts == []


def test_a_statement_is_kept_in_part_with_the_hash_of_all_of_it():
    text = "SELECT '" + "é" * 5000 + "'"
    kept = statement(text)
    assert kept["statement"] == text[:1000]
    assert kept["statement_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert statement(None) == {}


def test_any_text_that_can_be_sent_can_be_stored(root, writer):
    texts = ["\x00", "a\ud800b", "\udfff" * 2000, "", "\u202e \x1b[2J"]
    for text in texts:
        writer.record(Access(who="finance", action="query", outcome="refused", **statement(text)))
    stored = [row[0] for row in rows(root, "statement")]
    assert stored == [text[:1000].encode(errors="backslashreplace").decode() for text in texts]
