import dataclasses
import hashlib
import io
import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.events import LedgerAction
from rose.ledger import verified
from rose.ledger.checks.expected import COMPACTED_ACTION
from rose.ledger.files import keys, layout, registry, segments
from rose.ledger.files.content import rows_sha256
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.segments import Tail, chain_sha256, link_message
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import copied, record
from tests.ledger.evidence import ledgers


def _append(root, tail, power_mw=7):
    return ledgers.append(root, tail, 2, power_mw)


@pytest.fixture
def root(tmp_path):
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "a", epochs=2)
    assert Ledger(root).verify().problems == []
    return root


def _of_a(root, seen=None, **asked):
    ledger = Ledger(root)
    ledger.seen = seen or ledger.seen
    (of_writer,) = (of_writer for of_writer in ledger.verify(**asked).writers if of_writer.writer == "a")
    return of_writer


def test_what_a_verification_saw_serves_the_next_one(root):
    compaction.compact(Ledger(root), grace_s=0)
    before = dataclasses.asdict(_of_a(root))
    assert dataclasses.asdict(_of_a(root, seen=verified.load(Ledger(root).folder))) == before


def _forge_compacted(root, change, until=100):
    """Other rows below seq `until` in the merged file; its hash, manifest and event of the compaction made to agree."""
    (path,) = root.glob("compacted/a/*.parquet")
    table = pq.read_table(path)
    index = table.schema.get_field_index("power_mw")
    table = table.set_column(index, "power_mw", pa.array([1 if n < until else 7 for n in table["seq"].to_pylist()]))
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    path.write_bytes(buffer.getvalue())
    manifest = json.loads(path.with_suffix(".json").read_bytes())
    manifest["sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    change(manifest, table)
    content = json.dumps(manifest).encode()
    path.with_suffix(".json").write_bytes(content)
    detail = {name: value for name, value in manifest.items() if name != "segments"}
    detail["manifest_sha256"] = hashlib.sha256(content).hexdigest()
    # Of all that is forged here only this is signed: the compaction is one that its user may run.
    record(
        root,
        LedgerAction(action=COMPACTED_ACTION, detail_json=json.dumps(detail)),
        writer="compaction",
        run_id="ledger",
    )


def _rebuild(manifest, table, key, chain=True):
    """The digests of the forged rows, and all that follows from them, as far as `key` can make it."""
    previous = ""
    for entry in manifest["segments"]:
        first, last = entry["first_seq"], entry["last_seq"]
        seqs = table["seq"].to_numpy()
        entry["rows_sha256"] = rows_sha256(table.filter(pa.array((seqs >= first) & (seqs <= last))))
        if chain:
            entry["chain_sha256"] = previous = chain_sha256(previous, "a", first, last, entry["rows_sha256"])
        if key is not None:
            entry |= {"key": key.public, "signature": key.sign(link_message(entry["chain_sha256"]))}


def _unsigned(manifest, table):
    _rebuild(manifest, table, None)
    for entry in manifest["segments"]:
        entry |= {"key": "", "signature": ""}


def test_rows_replaced_through_a_forged_compaction_are_found(root, tmp_path, other_key):
    """Each of them makes more agree: the digests, the chain up to the merged end, signatures, or none at all."""
    compaction.compact(Ledger(root), grace_s=0)
    assert Ledger(root).verify().problems == []
    registered = f"signed by the key {other_key.public}, which writers.jsonl does not"
    forgeries = [
        (lambda manifest, table: None, "its rows of seq 0 to 1 were replaced after they were written"),
        (
            lambda manifest, table: _rebuild(manifest, table, None, chain=False),
            "its content does not follow the segment",
        ),
        (lambda manifest, table: _rebuild(manifest, table, None), "its signature is not by the key"),
        (lambda manifest, table: _rebuild(manifest, table, other_key), registered),
        (_unsigned, "writers.jsonl says that its writer signed from the start"),
    ]
    for number, (forge, says) in enumerate(forgeries):
        copy = copied(root, tmp_path / str(number))
        _forge_compacted(copy, forge)
        assert any(says in problem for problem in Ledger(copy).verify().problems), says


def _written_anew(root, key):
    epoch = root / "live/a/000001"
    header = segments.read_header(sorted(epoch.iterdir())[0].read_bytes())
    sha256 = segments.sha256_in(sorted(epoch.iterdir())[0].name)
    for path in sorted(epoch.iterdir())[1:]:
        path.unlink()
    tail = Tail("a", 1, 1, header.last_seq + 1, sha256, header.chain_sha256, key=key)
    if key is not None:
        tail = replace(tail, signed_by=key.public)
    _append(root, _append(root, tail, 1), 1)
    shutil.rmtree(root / "verified")


@pytest.mark.parametrize("kept", ["rows_sha256", "chain_sha256", "neither"])
def test_a_merged_segment_without_digests_was_forged(tmp_path, monkeypatch, kept):
    with monkeypatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", "/dev/null/none")
        root = layout.create(tmp_path / "unsigned")
        tail = segments.begin_epoch(root, segments.recover(root, "a"))
        segments.begin_epoch(root, _append(root, _append(root, tail)))
        for _ in range(2):
            compaction.compact(Ledger(root), grace_s=0)
        assert Ledger(root).verify().problems == []
        bare = {name: "" for name in ("rows_sha256", "chain_sha256") if name != kept}

        def hide(manifest, _):
            first, *_, last, after = manifest["segments"]
            forged = {**first, **bare, "sha256": last["chain_sha256"], "last_seq": last["last_seq"]}
            manifest["segments"] = [forged, {**after, "previous_sha256": forged["sha256"]}]

        _forge_compacted(root, hide, until=4)
        assert any("it is not a manifest: it was forged" in problem for problem in Ledger(root).verify().problems)


def test_an_end_that_was_written_anew_without_the_key_is_found(root, other_key):
    _written_anew(root, None)
    assert any("unsigned segment after a signed one" in p for p in Ledger(root).verify().problems)
    _written_anew(root, other_key)
    assert f"signed by the key {other_key.public}, which writers.jsonl does not" in str(Ledger(root).verify().problems)


def test_a_key_that_registers_itself_for_a_writer_with_a_key_is_a_problem_until_it_is_endorsed(root, other_key):
    _written_anew(root, other_key)
    registry.note(root, "a", other_key.public, other_key)
    (problem,) = Ledger(root).verify().problems
    assert f"writer a is signed by {other_key.public}, which is not endorsed for this writer" in problem
    registry.endorse(root, other_key.public, keys.load_or_make())
    report = Ledger(root).verify()
    assert (report.problems, report.notes) == ([], [])


def test_the_key_of_a_new_writer_is_a_note_until_it_is_endorsed(root, other_key, monkeypatch):
    monkeypatch.setattr(keys, "load_or_make", lambda path=None: other_key)
    record(root, LedgerAction(action="note"), writer="far")
    report = Ledger(root).verify()
    (note,) = report.notes
    assert report.problems == []
    assert note.startswith(f"key {other_key.public}, of far, was taken on first use")


def test_a_segment_whose_rows_are_not_its_digest_s_is_found_and_not_merged(root):
    """Its own hashes are right: who wrote it had the key, and lied about one."""
    tail = segments.recover(root, "a")
    before = sorted(root.glob("live/a/000001/*"))
    _append(root, tail)
    (path,) = set(root.glob("live/a/000001/*")) - set(before)
    file = pq.ParquetFile(path)
    header = file.metadata.metadata[b"rose"]
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, file.schema_arrow, store_schema=False) as writer:
        writer.write_table(
            ledgers.powers("a", 8, 2, power_mw=1).select(file.schema_arrow.names).cast(file.schema_arrow)
        )
        writer.add_key_value_metadata({b"rose": header})
    path.unlink()
    name = f"000003-{hashlib.sha256(buffer.getvalue()).hexdigest()}.parquet"
    (root / "live/a/000001" / name).write_bytes(buffer.getvalue())
    (root / "heads/a.json").write_text(json.dumps({"segment": f"live/a/000001/{name}"}))
    assert Ledger(root).verify().problems == [
        f"live/a/000001/{name}: its rows do not match the digest of its writer: they were replaced"
    ]
    segments.begin_epoch(root, segments.recover(root, "a"))
    with pytest.raises(LedgerError, match="its rows of seq 8 to 9 were replaced after they were written; nothing"):
        compaction.compact(Ledger(root), grace_s=0)
    assert not list(root.glob("compacted/a/*"))


def test_a_writer_without_a_place_for_a_key_writes_unsigned_and_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "file" / "key"))
        record(tmp_path / "ledger", LedgerAction(action="note"), writer="a")
    of_writer = _of_a(tmp_path / "ledger")
    assert (of_writer.problems, of_writer.events, of_writer.signed_events, of_writer.signers[0].key) == ([], 1, 0, "")
    record(tmp_path / "ledger", LedgerAction(action="note"), writer="a")
    of_writer = _of_a(tmp_path / "ledger")
    assert (of_writer.problems, of_writer.events, of_writer.signed_events) == ([], 2, 1)
    monkeypatch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "file" / "key"))
    with pytest.raises(LedgerError, match=f"with the key {'[0-9a-f]' * 64}, which is missing here: restore its file"):
        LedgerWriter.open(tmp_path / "ledger", "a", "r")
