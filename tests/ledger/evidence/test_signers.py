"""A key signs for the writers that it was endorsed for: what the key of one host can do to another's events."""

import dataclasses
import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rose.events import LedgerAction
from rose.ledger.evidence import continuation, receipt
from rose.ledger.files import keys, layout, registry, rolled, segments
from rose.ledger.files.layout import CLOSING_WRITER
from rose.ledger.growth import rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import record
from tests.ledger.evidence import ledgers


@pytest.fixture
def agent(tmp_path):
    return keys.load_or_make(tmp_path / "h2.key")


@pytest.fixture
def root(tmp_path, agent):
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "controller")
    for name, key in (("h1.agent", keys.load_or_make(tmp_path / "h1.key")), ("h2.agent", agent)):
        _write(root, name, key)
        registry.endorse(root, key.public, keys.load_or_make())
    report = Ledger(root).verify()
    assert (report.problems, report.notes) == ([], [])
    return root


def _write(root, writer, key):
    tail = segments.recover(root, writer)
    tail = segments.begin_epoch(root, dataclasses.replace(tail, key=key))
    ledgers.append(root, ledgers.append(root, tail, 2), 2)


def _check(root, before):
    named = {"before.json": before}
    report = Ledger(root).verify(marks=continuation.marks(named))
    return report, continuation.check(report, named).problems


@pytest.mark.parametrize("name", ["h2", "accomplice"])
def test_the_key_of_one_host_neither_writes_for_another_nor_endorses_an_accomplice(root, agent, tmp_path, name):
    before, key = receipt.take(Ledger(root)), keys.load_or_make(tmp_path / f"{name}.key")
    registry.note(root, "h1.agent", key.public, by=agent)
    _write(root, "h1.agent", key)
    report, problems = _check(root, before)
    assert any("h1.agent" in problem and key.public in problem for problem in report.problems), report.problems
    assert any("h1.agent" in problem and key.public in problem for problem in problems), problems


def test_a_writer_changes_its_key_by_its_old_one(root, agent, tmp_path):
    before, new = receipt.take(Ledger(root)), keys.load_or_make(tmp_path / "new.key")
    _write(root, "h2.agent", new)
    registry.endorse(root, new.public, agent)
    report, problems = _check(root, before)
    assert (report.problems, report.notes, problems) == ([], [], [])


def test_a_host_that_joins_or_is_renamed_is_endorsed_by_the_controllers_key(root, agent, tmp_path):
    before, new = receipt.take(Ledger(root)), keys.load_or_make(tmp_path / "h3.key")
    _write(root, "h3.agent", new)
    _write(root, "renamed.agent", agent)
    report = Ledger(root).verify()
    assert report.problems == []
    assert len(report.notes) == 2
    registry.endorse(root, new.public, keys.load_or_make())
    registry.endorse(root, agent.public, keys.load_or_make(), "renamed.agent")
    report, problems = _check(root, before)
    assert (report.problems, report.notes, problems) == ([], [], [])


@pytest.fixture
def as_agent(root, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, str(tmp_path / "h2.key"))
        yield patch


def _forge_sums(root):
    newest = rolled.newest(root)
    folder = root / newest.folder
    path = folder / "daily_event.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(path)] * 2), path)
    coverage = json.loads((folder / "coverage.json").read_bytes())
    coverage["files"]["daily_event"] = hashlib.sha256(path.read_bytes()).hexdigest()
    content = json.dumps(coverage, indent=1).encode()
    (folder / "coverage.json").write_bytes(content)
    detail = {"generation": newest.generation, "coverage_sha256": hashlib.sha256(content).hexdigest()}
    record(root, LedgerAction(action="rolled_up", detail_json=json.dumps(detail)), writer="rollup", run_id="ledger")


def test_whoever_has_the_folder_rolls_it_up_and_forges_no_sums(root, agent, as_agent):
    """Several hosts roll up one ledger in turn; a note says whose key is not endorsed for it."""
    _write(root, "h2.agent", agent)
    rollup.roll_up(Ledger(root))
    report = Ledger(root).verify()
    assert report.problems == []
    assert [note.split(" is signed by")[0] for note in report.notes] == ["writer rollup"]
    _forge_sums(root)
    (problem,) = Ledger(root).verify().problems
    assert problem.startswith("rollup/000000/daily_event.parquet: ")
    assert agent.public in problem


def test_an_event_of_the_books_by_the_key_of_another_writer_is_a_problem(root, agent, as_agent):
    detail = {"name": "b", "version": "1", "sha256": "0" * 64, "text": "", "adopted_us": 1, "adopted_by": "h2"}
    record(root, LedgerAction(action="adopted", detail_json=json.dumps(detail)), writer=CLOSING_WRITER, run_id="ledger")
    (problem,) = Ledger(root).verify().problems
    assert problem.startswith(f"live/{CLOSING_WRITER}/")
    assert agent.public in problem
    as_agent.undo()
    registry.endorse(root, agent.public, keys.load_or_make(), CLOSING_WRITER)
    assert Ledger(root).verify().problems == []
