"""A key signs for the writers that it was endorsed for: what the key of one host can do to another's events."""

import dataclasses

import pytest

from rose.ledger import layout, segments
from rose.ledger.checks import registry
from rose.ledger.evidence import continuation, keys, receipt
from rose.ledger.verify import verify
from tests.ledger.evidence import ledgers


@pytest.fixture
def agent(tmp_path):
    return keys.load_or_make(tmp_path / "h2.key")


@pytest.fixture
def root(tmp_path, agent):
    """A ledger of a controller, and of two hosts whose keys it endorsed."""
    root = layout.create(tmp_path / "ledger")
    ledgers.write(root, "controller")
    for name, key in (("h1.agent", keys.load_or_make(tmp_path / "h1.key")), ("h2.agent", agent)):
        _write(root, name, key)
        registry.endorse(root, key.public, keys.load_or_make())
    report = verify(root)
    assert (report.problems, report.notes) == ([], [])
    return root


def _write(root, writer, key):
    tail = segments.recover(root, writer) or segments.Tail(writer, epoch=-1, next_index=0, next_seq=0, sha256="")
    tail = segments.begin_epoch(root, dataclasses.replace(tail, key=key))
    ledgers.append(root, ledgers.append(root, tail, 2), 2)


def _check(root, before):
    named = {"before.json": before}
    report = verify(root, marks=continuation.marks(named))
    return report, continuation.check(report, named).problems


@pytest.mark.parametrize("name", ["h2", "accomplice"])
def test_the_key_of_one_host_neither_writes_for_another_nor_endorses_an_accomplice(root, agent, tmp_path, name):
    before, key = receipt.take(root), keys.load_or_make(tmp_path / f"{name}.key")
    registry.note(root, "h1.agent", key.public, by=agent)
    _write(root, "h1.agent", key)
    report, problems = _check(root, before)
    assert any("h1.agent" in problem and key.public in problem for problem in report.problems), report.problems
    assert any("h1.agent" in problem and key.public in problem for problem in problems), problems


def test_a_writer_changes_its_key_by_its_old_one(root, agent, tmp_path):
    before, new = receipt.take(root), keys.load_or_make(tmp_path / "new.key")
    _write(root, "h2.agent", new)
    registry.endorse(root, new.public, agent)
    report, problems = _check(root, before)
    assert (report.problems, report.notes, problems) == ([], [], [])


def test_a_host_that_joins_or_is_renamed_is_endorsed_by_the_controllers_key(root, agent, tmp_path):
    before, new = receipt.take(root), keys.load_or_make(tmp_path / "h3.key")
    _write(root, "h3.agent", new)
    _write(root, "renamed.agent", agent)
    report = verify(root)
    assert report.problems == []
    assert len(report.notes) == 2
    registry.endorse(root, new.public, keys.load_or_make())
    registry.endorse(root, agent.public, keys.load_or_make(), "renamed.agent")
    report, problems = _check(root, before)
    assert (report.problems, report.notes, problems) == ([], [], [])


def test_whoever_has_the_folder_does_its_upkeep(root, agent):
    """Several hosts roll up one ledger in turn; the note says whose key is not endorsed for it."""
    ledgers.write(root, "rollup")
    _write(root, "rollup", agent)
    report = verify(root)
    assert report.problems == []
    assert [note.split(" is signed by")[0] for note in report.notes] == ["writer rollup"]
