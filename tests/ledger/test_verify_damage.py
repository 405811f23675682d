"""Files that no `rose` command wrote: each is a problem that names it, and never a traceback."""

import hashlib
import io
import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rose.events import LedgerAction
from rose.ledger.files import catalog, layout, registry, rows
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests.ledger.evidence import ledgers


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = layout.create(tmp_path_factory.mktemp("sound") / "ledger")
    ledgers.write(root, "a", epochs=3)
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    catalog.connect(root).close()
    assert Ledger(root).verify().problems == []
    return root


@pytest.fixture
def root(sound, tmp_path):
    # A copy in its place would do, but for the catalog, which names where it lies.
    return Path(shutil.copytree(sound, tmp_path / "ledger"))


@pytest.mark.parametrize(
    "name",
    [
        "heads/a.json",
        "heads/a.next",
        registry.FILE,
        layout.CATALOG,
        "rollup/000000/coverage.json",
        "compacted/a/000000-000001.json",
    ],
)
def test_a_folder_in_the_place_of_a_file_is_named(root, name):
    (root / name).unlink()
    (root / name).mkdir()
    problems = Ledger(root).verify().problems
    assert any(name in problem for problem in problems), problems


def test_a_header_that_cannot_be_is_named(root):
    unsigned = {"rows_sha256": "0" * 64, "chain_sha256": "0" * 64, "key": "", "signature": ""}
    for changed, says in (
        ({"first_seq": "x"}, "not a segment"),
        ({"first_seq": 0, "last_seq": 10**12}, "its rows are not seq 0 to"),
        ({"first_seq": 2**70, "last_seq": 2**70}, "not a segment"),
        ({"epoch": None}, "not a segment"),
        ({"writer": 5}, "not a segment"),
    ):
        places = {"writer": "a", "epoch": 2, "index": 9, "first_seq": 0, "last_seq": -1, "previous_sha256": ""}
        table, buffer = rows.schema().empty_table(), io.BytesIO()
        with pq.ParquetWriter(buffer, table.schema, store_schema=False) as file:
            file.write_table(table)
            file.add_key_value_metadata({b"rose": json.dumps({**places, **unsigned, **changed}).encode()})
        path = root / f"live/a/000002/000009-{hashlib.sha256(buffer.getvalue()).hexdigest()}.parquet"
        path.write_bytes(buffer.getvalue())
        problems = Ledger(root).verify().problems
        assert any(problem.startswith(str(path.relative_to(root))) and says in problem for problem in problems), changed
        path.unlink()


@pytest.mark.parametrize(
    ("writer", "action"),
    [("compaction", "compacted"), ("archive", "archived"), ("archive", "restored"), ("rollup", "rolled_up")],
)
def test_an_event_of_upkeep_that_does_not_say_what_was_done_is_named(root, writer, action):
    with LedgerWriter.open(root, writer, layout.UPKEEP_RUN_ID) as log:
        for detail in ("{}", "[]", "5", '{"manifest_sha256": 5, "coverage_sha256": []}'):
            log.record(LedgerAction(action=action, detail_json=detail), durable=False)
    named = [problem for problem in Ledger(root).verify().problems if f"the event {action!r} lacks" in problem]
    assert len(named) == 4
    assert all(problem.startswith(f"live/{writer}: seq ") for problem in named)


@pytest.mark.parametrize(
    "change",
    [lambda said: said.pop("first_seq"), lambda said: said["segments"][0].update(first_seq="0"), dict.clear],
    ids=["without seqs", "text for a seq", "empty"],
)
def test_a_manifest_that_cannot_be_is_named_though_an_event_names_it(root, change):
    path = root / "compacted/a/000000-000001.json"
    said = json.loads(path.read_bytes())
    change(said)
    path.write_text(json.dumps(said))
    manifest_sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    detail = {"writer": "a", "last_seq": 1, "sha256": "", "manifest_sha256": manifest_sha256}
    with LedgerWriter.open(root, "compaction", layout.UPKEEP_RUN_ID) as log:
        log.record(LedgerAction(action="compacted", detail_json=json.dumps(detail)), durable=True)
    problems = Ledger(root).verify().problems
    named = [problem for problem in problems if problem.startswith("compacted/a/000000-000001.json: ")]
    assert any("it is not a manifest" in problem for problem in named), problems
