import threading
from contextlib import contextmanager

import pytest

from rose.ledger.files import layout, segments, spool
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth.archive import archive
from rose.ledger.growth.compaction import compact
from rose.ledger.growth.rollup import roll_up
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.ledger.conftest import ask, record
from tests.ledger.hosts.served import serve
from tests.runtime.conftest import until

_DOOR = "from tests.ledger.hosts.served import main; main()"


@pytest.fixture
def centre(tmp_path):
    return tmp_path / "centre"


@pytest.fixture
def far(tmp_path):
    return layout.create(tmp_path / "far")


@pytest.fixture
def url(centre):
    with serve(centre) as url:
        yield url


@pytest.fixture
def write(far, lease):
    written = iter(range(10**6))

    def write(count, writer="host1-agent", folder=far):
        record(folder, *(lease(event_id=f"e{next(written)}") for _ in range(count)), writer=writer)

    return write


@contextmanager
def forwarder(root, url, report=print, **options):
    sender = Forwarder(Ledger(root), url, None, report, **options)
    try:
        yield sender
    finally:
        sender.stop()


@contextmanager
def serving(root, port=0):
    with programs.started(_DOOR, root, port) as (process, output):
        try:
            yield process, output.readline().strip()
        finally:
            process.kill()


def segments_at(centre):
    return len(list((centre / "live").glob("host1-agent/*/*.parquet")))


def check_whole(centre, events):
    report = Ledger(centre).verify()
    assert report.doubts == []
    counted = "SELECT count(*), count(DISTINCT event_id), count(DISTINCT (writer, seq)) FROM stored_event"
    assert ask(centre, f"{counted} WHERE kind = 'lease'") == [(events, events, events)]
    assert ask(centre, "SELECT count(*) FROM event WHERE kind = 'lease'") == [(events,)]


def test_upkeep_of_the_spool_stays_where_it_is(centre, far, url, write):
    write(1)
    with LedgerWriter.open(far, "compaction", "ledger"), forwarder(far, url) as sender:
        assert sender.once().problems == {}
    assert layout.writers(centre) == ["host1-agent"]


def test_epochs_merged_at_the_centre_are_not_sent_again(centre, far, url, write, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 3)
    write(10)
    with forwarder(far, url) as sender:
        sender.once()
        for _ in range(2):
            compact(Ledger(centre), grace_s=0)
        assert layout.epochs(centre, "host1-agent") == layout.epochs(far, "host1-agent")[-1:]
        write(7)
        assert sender.once().waiting == 0
        compact(Ledger(centre), grace_s=0)
    check_whole(centre, 17)
    assert spool.first_unsent_epoch(far, "host1-agent") == layout.epochs(far, "host1-agent")[-1]


def test_an_epoch_that_was_merged_before_it_was_sent_is_named(centre, far, url, write, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 3)
    write(10)
    for _ in range(2):
        compact(Ledger(far), grace_s=0)
    with forwarder(far, url) as sender:
        progress = sender.once()
    assert "epoch 0 of writer 'host1-agent' was merged before it was forwarded" in progress.problems["host1-agent"]


def test_two_hosts_with_one_name_are_told_and_neither_loses_anything(centre, far, url, write, tmp_path):
    write(3)
    other = layout.create(tmp_path / "other")
    write(5, folder=other)
    write(2, writer="host2-agent", folder=other)
    with forwarder(far, url) as sender, forwarder(other, url) as second:
        sender.once()
        progress = second.once()
        assert list(progress.problems) == ["host1-agent"]
        assert "other writer names" in progress.problems["host1-agent"]
        assert progress.waiting == 2
        write(1)
        assert sender.once().problems == {}
    check_whole(centre, 6)


def test_what_the_controller_does_not_foresee_ends_no_forwarder(centre, far, url, write):
    """Nobody would start it again: its host's events would wait there without a word."""
    write(1)
    marker = (centre / layout.MARKER).read_bytes()
    (centre / layout.MARKER).write_bytes(b"")
    reports = []
    with forwarder(far, url, every_s=0.05, report=reports.append) as sender:
        sender.start()
        until(lambda: reports, 20.0)
        assert "Expecting value" in reports[0].problems["host1-agent"]
        assert "Traceback" not in reports[0].problems["host1-agent"]
        (centre / layout.MARKER).write_bytes(marker)
        until(lambda: reports[-1].problems == {} and reports[-1].waiting == 0)
    check_whole(centre, 1)


@pytest.mark.long
def test_a_controller_killed_again_and_again_loses_nothing_and_doubles_nothing(centre, far, write):
    reports = []
    filled = threading.Thread(target=write, args=(90,))
    filled.start()
    with serving(centre) as (process, url):
        sender = Forwarder(Ledger(far), url, None, reports.append, every_s=0.05)
        sender.start()
        until(lambda: segments_at(centre) > 15)
        process.kill()
    with serving(centre, int(url.rpartition(":")[2])) as (process, _):
        until(lambda: segments_at(centre) > 45)
        process.kill()
    filled.join()
    with serving(centre, int(url.rpartition(":")[2])):
        until(lambda: reports[-1].stopped is None and reports[-1].waiting == 0)
        sender.stop()
    check_whole(centre, 90)


def test_nothing_leaves_a_spool_before_it_is_at_the_controller(centre, far, write, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 3)
    (far / spool.FOLDER).mkdir(parents=True)
    write(15)
    compact(Ledger(far), grace_s=0)
    roll_up(Ledger(far))
    kept = archive(Ledger(far), older_than_days=0, to=f"{far}-away", delete=True, grace_s=0)
    assert kept.left == 0
    assert "not all at the gateway" in str(kept.skipped)
    with serve(centre) as url:
        with forwarder(far, url) as sender:
            sender.once()
        compact(Ledger(far), grace_s=0)
        assert archive(Ledger(far), older_than_days=0, to=f"{far}-away", delete=True, grace_s=0).left > 0
        write(5)
        with forwarder(far, url) as sender:
            assert (sender.once().problems, sender.once().waiting) == ({}, 0)
    assert Ledger(far).verify().problems == []
    assert len(list(far.glob("*/host1-agent/**/*.parquet"))) < 9
    check_whole(centre, 20)


def test_a_spool_keeps_what_was_not_acknowledged(tmp_path):
    root = layout.create(tmp_path / "ledger")
    assert spool.first_unsent_epoch(root, "w") is None, "no spool"
    (root / spool.FOLDER).mkdir(parents=True)
    assert spool.first_unsent_epoch(root, "w") == 0
    spool.acknowledged(root, "w", 3)
    assert (spool.first_unsent_epoch(root, "w"), spool.first_unsent_epoch(root, "v")) == (3, 0)
    for writer in ("access", "archive", "closing", "compaction", "gateway", "job-prices", "rollup"):
        assert spool.is_local(writer)
        assert spool.first_unsent_epoch(root, writer) is None
    (root / "forwarded" / "w.json").write_text("{")
    with pytest.raises(LedgerError, match=r"forwarded/w.json is damaged; delete it"):
        spool.first_unsent_epoch(root, "w")
