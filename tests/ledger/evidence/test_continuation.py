import dataclasses
import json
import shutil

import pyarrow.parquet as pq
import pytest

from rose.events import LedgerAction
from rose.ledger.evidence import continuation, receipt
from rose.ledger.files import keys, layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import record
from tests.ledger.evidence import ledgers


@pytest.fixture
def root(tmp_path):
    made = layout.create(tmp_path / "ledger")
    ledgers.write(made, "a", epochs=3)
    ledgers.write(made, "b")
    return made


@pytest.fixture
def kept(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def _keep(root, kept):
    path = kept / f"{len(list(kept.iterdir()))}.json"
    path.write_bytes(receipt.take(Ledger(root)).content())
    return path


def _held(root, kept, forged=""):
    """What the receipts say of a ledger that is sound by itself, or whose writer `forged` signs with another key."""
    named = continuation.read([kept])
    report = Ledger(root).verify(marks=continuation.marks(named))
    assert [f"writer {forged} is signed by" in problem for problem in report.problems] == ([True] if forged else [])
    return continuation.check(report, named)


def test_a_ledger_that_was_set_back_is_found(root, kept, tmp_path):
    early = _keep(root, kept)
    shutil.copytree(root, tmp_path / "copy")
    ledgers.write(root, "b")
    late = _keep(root, kept)
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "copy", root)
    (problem,) = _held(root, kept).problems
    assert f"it ends at seq 3, and {late} has events up to seq 7; up to seq 3 it matches {early}" in problem
    ledgers.write(root, "b", power_mw=lambda seq: 8)
    (problem,) = _held(root, kept).problems
    assert f"its events up to seq 7 differ from {late}" in problem


def test_a_writer_that_was_taken_out_is_found(root, kept):
    path = _keep(root, kept)
    ledgers.rewritten(root, lambda other: ledgers.write(other, "a", epochs=3))
    problems = _held(root, kept).problems
    assert f"live/b: writer b was rewritten or set back: every event is gone; {path} has 4 of them" in problems[1]
    assert f"writers.jsonl: it does not begin with the lines that it had in {path}" in problems[0]


def test_segments_of_another_key_are_found_until_it_is_endorsed(root, kept, tmp_path, monkeypatch):
    _keep(root, kept)
    ledgers.write(root, "a")
    monkeypatch.setenv(keys.VARIABLE, str(tmp_path / "other.key"))
    other = keys.load_or_make()
    ledgers.write(root, "a")
    ledgers.write(root, "mine")
    problems = _held(root, kept, forged="a").problems
    assert len(problems) == 2
    assert "from seq 16 on, writer a: it is signed by" in problems[0]
    assert f"If it is your key, run `rose ledger endorse {other.public}`" in problems[0]
    assert "from seq 0 on, writer mine: it is signed by" in problems[1]


def _write_unsigned(root, folder):
    (folder / "file").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, str(folder / "file" / "key"))
        ledgers.write(root, "unsigned")


def test_what_nobody_signed_gets_advice_that_helps(root, kept, tmp_path):
    _keep(root, kept)
    _write_unsigned(root, tmp_path)
    (problem,) = _held(root, kept).problems
    assert "from seq 0 on, writer unsigned: it is not signed. No endorsement can sign it later" in problem
    assert "take a new receipt" in problem
    assert "endorse " not in problem
    later = tmp_path / "later"
    later.mkdir()
    _keep(root, later)
    assert _held(root, later).problems == []


def test_a_rewritten_chain_names_the_first_segment_that_another_signed(root, kept, tmp_path, monkeypatch):
    _keep(root, kept)
    tail = ledgers.segments.recover(root, "b")
    newest = root / receipt.take(Ledger(root)).writers["b"].segment
    monkeypatch.setenv(keys.VARIABLE, str(tmp_path / "other.key"))
    header = ledgers.segments.read_header(newest.read_bytes())
    before = ledgers.segments.read_header(sorted(newest.parent.iterdir())[-2].read_bytes())
    newest.unlink()
    place = {"next_index": header.index, "next_seq": header.first_seq, "sha256": header.previous_sha256}
    again = dataclasses.replace(tail, **place, link=before.chain_sha256, key=keys.load_or_make())
    ledgers.append(root, again, 2, power_mw=1)
    (problem,) = _held(root, kept, forged="b").problems
    assert "writer b was rewritten or set back" in problem
    assert "and from seq 2 on (live/b/000000/000002-" in problem
    assert "it is signed by" in problem


def test_daily_sums_that_are_not_those_of_the_events_are_found(root, kept):
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    _keep(root, kept)
    folder = root / "rollup" / "000000"
    path = folder / "daily_event.parquet"
    table = pq.read_table(path)
    column = table.schema.get_field_index("events")
    doubled = table.set_column(column, "events", [[2 * count for count in table["events"].to_pylist()]])
    pq.write_table(doubled.cast(table.schema), path)
    coverage = json.loads((folder / "coverage.json").read_bytes())
    coverage["files"]["daily_event"] = continuation.examine.sha256_of(path.read_bytes())
    (folder / "coverage.json").write_text(json.dumps(coverage, indent=1))
    recorded = continuation.examine.recorded(root, "rollup", "rolled_up")[-1]
    forged = {**recorded, "coverage_sha256": continuation.examine.sha256_of((folder / "coverage.json").read_bytes())}
    record(root, LedgerAction(action="rolled_up", detail_json=json.dumps(forged)), writer="rollup", run_id="ledger")
    (problem,) = _held(root, kept).problems
    assert problem.startswith("rollup/000000/daily_event.parquet: ")
    assert "are not the sums of the events that they count" in problem


def test_what_pricing_added_up_before_is_made_again(root, kept):
    """Nothing proves it, and `rose report` would believe it."""
    _keep(root, kept)
    (root / layout.PRICING).write_bytes(b"edited")
    assert _held(root, kept).problems == []
    assert not (root / layout.PRICING).exists()
    (root / layout.PRICING).mkdir()
    assert f"{layout.PRICING}: nothing proves its sums" in str(_held(root, kept).problems)


def test_receipts_that_will_not_do_are_refused(root, kept, tmp_path):
    path = _keep(root, kept)
    taken = receipt.read(path)
    other = layout.create(tmp_path / "other")
    with pytest.raises(LedgerError, match=f"{path} belongs to ledger {taken.ledger}, but {other} has id"):
        continuation.check(Ledger(other).verify(), continuation.read([path]))
    with pytest.raises(LedgerError, match=f"{path} was signed by the key {taken.key}, not by abc"):
        continuation.read([path], key="abc")
    assert list(continuation.read([kept, path], key=taken.key.upper())) == [str(path)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(LedgerError, match="has no receipt"):
        continuation.read([tmp_path / "empty"])
    with pytest.raises(LedgerError, match="cannot read"):
        continuation.read([tmp_path / "gone.json"])
    path.write_bytes(path.read_bytes().replace(b'"next_seq": 4', b'"next_seq": 2'))
    with pytest.raises(LedgerError, match="the signature is wrong"):
        continuation.read([kept])
