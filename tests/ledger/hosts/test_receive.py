import errno
import hashlib
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.ledger.files import catalog, keys, layout, registry, segments
from rose.ledger.files.content import rows_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import chain_sha256, link_message
from rose.ledger.hosts.receive import Receiver
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import ask, record


@pytest.fixture
def spool(tmp_path, lease):
    return record(tmp_path / "spool", *(lease(lease_id=f"l{n}") for n in range(4)), writer="far")


@pytest.fixture
def receiver(tmp_path):
    receiver = Receiver(Ledger.create(tmp_path / "centre"))
    yield receiver
    receiver.close()


def shipped(spool):
    paths = sorted((spool / "live" / "far").rglob("*.parquet"))
    return [(str(path.relative_to(spool)), path.read_bytes()) for path in paths]


def files(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*.parquet") if path.is_file()}


def forged(path, table=None, **changed):
    """A segment whose bytes match its name, with other rows or another header. The other is taken from `path`."""
    file = pq.ParquetFile(path)
    header = json.loads(file.metadata.metadata[b"rose"]) | changed
    buffer = io.BytesIO()
    table = file.read() if table is None else table
    with pq.ParquetWriter(buffer, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"rose": json.dumps(header).encode()})
    content = buffer.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    return f"live/{header['writer']}/{header['epoch']:06d}/{header['index']:06d}-{sha256}.parquet", content


def signed(spool, number, key, table=None):
    before, path = (spool / shipped(spool)[place][0] for place in (number - 1, number))
    header = segments.read_header(path.read_bytes())
    digest = rows_sha256(pq.read_table(path) if table is None else table)
    previous = segments.read_header(before.read_bytes()).chain_sha256
    link = chain_sha256(previous, "far", header.first_seq, header.last_seq, digest)
    texts = ("", "") if key is None else (key.public, key.sign(link_message(link)))
    changed = dict(zip(("key", "signature"), texts, strict=True))
    return forged(path, table, rows_sha256=digest, chain_sha256=link, **changed)


def test_a_chain_arrives_byte_for_byte_and_can_be_proved(spool, receiver):
    for count, (path, content) in enumerate(shipped(spool)):
        held = receiver.receive(path, content)
        assert (held.epoch, held.index, held.next_seq) == (0, count, max(0, count))
    assert files(receiver.folder / "live") == files(spool / "live")
    assert (receiver.folder / "heads" / "far.json").read_bytes() == (spool / "heads" / "far.json").read_bytes()
    report = Ledger(receiver.folder).verify()
    assert report.doubts == []
    assert [(w.writer, w.events) for w in report.writers] == [("far", 4)]
    assert receiver.ends() == {"far": held}
    before = files(receiver.folder)
    assert [receiver.receive(*segment) for segment in shipped(spool)][-1] == held
    assert files(receiver.folder) == before
    with pytest.raises(LedgerError, match="is open in the process"):
        LedgerWriter.open(receiver.folder, "far", "r")


def test_a_segment_is_announced_before_it_is_written(spool, receiver):
    first, second = shipped(spool)[:2]
    receiver.receive(*first)
    epoch = (receiver.folder / first[0]).parent
    away = epoch.rename(receiver.folder / "away")
    with pytest.raises(LedgerError, match="cannot write"):
        receiver.receive(*second)
    assert segments.read_head(receiver.folder, "far") == segments.Head(first[0], second[0])
    away.rename(epoch)
    receiver.receive(*second)
    assert segments.read_head(receiver.folder, "far") == segments.Head(second[0])


def test_a_fork_is_refused_and_nothing_is_lost(spool, receiver, tmp_path, lease):
    for segment in shipped(spool):
        receiver.receive(*segment)
    record(tmp_path / "other", *(lease(lease_id=f"other{n}") for n in range(6)), writer="far")
    before = files(receiver.folder)
    for segment in shipped(tmp_path / "other")[1:]:
        with pytest.raises(LedgerError, match=r"another history here.*\n?.*other writer names|not the next segment"):
            receiver.receive(*segment)
    assert files(receiver.folder) == before


def test_a_gap_is_refused(spool, receiver):
    sent = shipped(spool)
    with pytest.raises(LedgerError, match="not the next segment of 'far', which is segment 0 of epoch 0"):
        receiver.receive(*sent[1])
    receiver.receive(*sent[0])
    with pytest.raises(LedgerError, match="which is segment 1 of epoch 0"):
        receiver.receive(*sent[2])


def wrong(spool):
    first, second = (spool / path for path, _ in shipped(spool)[:2])
    path, content = shipped(spool)[1]
    rows = pq.ParquetFile(second).read()
    name = path.rpartition("/")[2]

    def with_column(column, values):
        index = rows.column_names.index(column) if column in rows.column_names else rows.num_columns
        kept = rows.drop_columns([column]) if column in rows.column_names else rows
        return kept.add_column(index, column, values)

    return {
        "is not the path of a segment": (f"live/far/../{name}", content),
        "is not the path": (f"live/far/000000/../../{name}", content),
        "writer name '..'": (f"live/../000000/{name}", content),
        "concern one folder only": (f"live/compaction/000000/{name}", content),
        "do not match its name": (path, content[:-1] + b"x"),
        "its header says": (path.replace("/000000/", "/0000000000/"), content),
        "its header says that it is live/far": (path.replace("far", "near"), content),
        "not a segment": (f"live/far/000000/000001-{hashlib.sha256(b'PAR1').hexdigest()}.parquet", b"PAR1"),
        "format 2": forged(second, format_version=2),
        "a number in its header": forged(second, first_seq=0.0),
        "its rows are not seq": forged(second, last_seq=10**18),
        "its rows are not seq 0 to 0": forged(second, rows.slice(0, 0)),
        "writer 'near' is not one of": forged(second, with_column("writer", pa.array(["near"]))),
        "provenance 'dreamt' is not one of": forged(second, with_column("provenance", pa.array(["dreamt"]))),
        "kind 'lie' is not one of": forged(second, with_column("kind", pa.array(["lie"]))),
        "run_id is missing": forged(second, with_column("run_id", pa.array([None], pa.string()))),
        "column 'extra' of type int64 is not known": forged(second, with_column("extra", pa.array([1]))),
        "column 'lease_id' of type int64": forged(second, with_column("lease_id", pa.array([1]))),
        "column 'kind' is missing": forged(second, rows.drop_columns(["kind"])),
        "another history": forged(second, previous_sha256="0" * 64),
        "do not match the digest of its writer": forged(second, rows_sha256="0" * 64),
        "its content does not follow the segment before it": forged(second, chain_sha256="0" * 64),
        "its signature is not by the key": forged(second, key="0" * 64),
        "unsigned, but writer 'far' signed its earlier segments": signed(spool, 1, None),
        "at most 100 segments": forged(second, index=101),
        "bytes; a segment may have": ("live/far/000000/" + name, b"0" * (64 * 1024**2 + 1)),
        "rows of": forged(first, pa.table({"seq": pa.nulls(2_000_001, pa.int64())})),
    }


def test_what_is_not_what_it_says_is_refused_and_leaves_nothing(spool, receiver):
    receiver.receive(*shipped(spool)[0])
    before = files(receiver.folder)
    for said, segment in wrong(spool).items():
        with pytest.raises(LedgerError) as caught:
            receiver.receive(*segment)
        assert said in str(caught.value)
    assert files(receiver.folder) == before
    receiver.receive(*shipped(spool)[1])
    assert Ledger(receiver.folder).verify().doubts == []


def test_a_segment_is_acknowledged_only_once_the_catalog_reads_it(spool, receiver, monkeypatch):
    full, real = [True, True], catalog.refresh

    def refresh(root):
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        real(root)

    monkeypatch.setattr(catalog, "refresh", refresh)
    (first, second, *_) = shipped(spool)
    for path, content in (first, first):
        with pytest.raises(LedgerError, match=r"cannot replace the catalog of .*No space left on device; make room"):
            receiver.receive(path, content)
    assert not (receiver.folder / layout.CATALOG).exists()
    assert receiver.receive(*first).index == 0
    assert (receiver.folder / layout.CATALOG).exists()
    assert receiver.receive(*second).index == 1


def test_a_segment_with_what_is_no_event_goes_in_and_is_named_so_that_its_host_goes_on(spool, receiver):
    (path, content), (second, _body), *_ = shipped(spool)
    receiver.receive(path, content)
    table = pq.read_table(spool / second)
    index = table.schema.get_field_index("expires_at_us")
    damaged = table.set_column(index, "expires_at_us", pa.array([2**63 - 1] * table.num_rows))
    path, content = signed(spool, 1, keys.load_or_make(), damaged)
    receiver.receive(path, content)
    receiver.receive(path, content)
    assert files(receiver.folder)[path] == content
    assert Ledger(receiver.folder).verify().doubts == []
    assert ask(receiver.folder, "SELECT count(*) FROM lease") == [(0,)]
    assert ask(receiver.folder, "SELECT kind FROM faulty_event") == [("lease",)]


def test_a_segment_whose_text_is_none_would_stop_every_reader_and_is_refused(spool, receiver):
    (path, content), (second, _), *_ = shipped(spool)
    receiver.receive(path, content)
    table = pq.read_table(spool / second)
    texts = [None, *pa.array([b"\xff"] * table.num_rows, pa.binary()).buffers()[1:]]
    broken = pa.Array.from_buffers(pa.string(), table.num_rows, texts)
    index = table.schema.get_field_index("lease_id")
    path, content = forged(spool / second, table.set_column(index, "lease_id", broken))
    with pytest.raises(LedgerError, match=r"not a segment: .*Invalid UTF8"):
        receiver.receive(path, content)
    assert path not in files(receiver.folder)


def test_the_first_key_of_a_writer_is_endorsed_by_the_gateway_and_another_is_refused_until_it_is(
    spool, receiver, other_key, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "gateway" / "ledger.key"))
        gateway = keys.load_or_make()
        for segment in shipped(spool)[:2]:
            receiver.receive(*segment)
        (line,) = registry.lines(receiver.folder)
        assert (line.writer, line.key, line.by) == ("far", own_key_of(spool), gateway.public)
        changed = signed(spool, 2, other_key)
        with pytest.raises(LedgerError, match=f"run `rose ledger endorse {other_key.public} --writer far`"):
            receiver.receive(*changed)
        registry.endorse(receiver.folder, other_key.public, gateway, "far")
        receiver.receive(*changed)
    report = Ledger(receiver.folder).verify()
    assert (report.problems, report.notes) == ([], [])
    assert [signer.key for signer in report.writers[0].signers] == [own_key_of(spool), other_key.public]


def own_key_of(spool):
    return segments.read_header(shipped(spool)[0][1]).key


def test_segments_of_a_host_that_signs_nothing_go_in_and_are_continued_by_signed_ones(spool, receiver):
    path, content = shipped(spool)[0]
    header = segments.read_header(content)
    first = forged(spool / path, key="", signature="")
    receiver.receive(*first)
    second, key = spool / shipped(spool)[1][0], keys.load_or_make()
    digest = rows_sha256(pq.read_table(second))
    link = chain_sha256(header.chain_sha256, "far", 0, 0, digest)
    digests = {"previous_sha256": segments.sha256_in(first[0]), "rows_sha256": digest, "chain_sha256": link}
    receiver.receive(*forged(second, **digests, key=key.public, signature=key.sign(link_message(link))))
    report = Ledger(receiver.folder).verify()
    assert report.problems == []
    assert (report.writers[0].signed_events, report.writers[0].events) == (1, 1)
