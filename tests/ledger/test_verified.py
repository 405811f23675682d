import json
from pathlib import Path

import pytest

from rose.clock import utc_us
from rose.ledger import verified
from rose.ledger.files import layout
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import copied, record


@pytest.fixture(scope="module")
def root_made(tmp_path_factory, lease):
    root = tmp_path_factory.mktemp("made") / "ledger"
    for _ in range(2):
        record(root, lease())
    compaction.compact(Ledger(root), grace_s=3600)
    rollup.roll_up(Ledger(root))
    return root


@pytest.fixture
def root(root_made, tmp_path):
    return copied(root_made, tmp_path / "ledger")


def _newest(root):
    return sorted((root / "live/w/000000").iterdir())[-1]


def test_a_verification_leaves_when_and_up_to_where_it_was_sound(root):
    assert verified.state(Ledger(root).folder) is None
    assert verified.text(Ledger(root).folder).startswith("never verified")
    began_us = utc_us()
    Ledger(root).verify()
    state = verified.state(Ledger(root).folder)
    assert began_us <= state.until_us <= utc_us()
    assert (state.sound, state.problems, state.full_until_us) == (True, 0, state.until_us)
    assert "@" in state.by
    assert state.heads["w"] == str(_newest(root).relative_to(root))
    assert ": sound (every byte read)" in state.text
    assert state.to_json()["sound"] is True


def test_what_is_wrong_shows_and_what_was_there_is_asked_for_until_it_is_back(root):
    Ledger(root).verify()
    head, content = (root / "heads/w.json").read_bytes(), _newest(root).read_bytes()
    path = _newest(root)
    path.unlink()
    (root / "heads/w.json").write_text(json.dumps({"segment": str(_newest(root).relative_to(root))}))
    for _ in range(2):
        assert not Ledger(root).verify().ok
        assert "NOT SOUND, 1 problem" in verified.text(Ledger(root).folder)
    path.write_bytes(content)
    (root / "heads/w.json").write_bytes(head)
    assert Ledger(root).verify().ok
    assert ": sound" in verified.text(Ledger(root).folder)


def test_an_incremental_verification_finds_what_the_full_one_does_and_reads_new_files_only(root, lease, monkeypatch):
    ledger = Ledger(root)
    first = ledger.verify()
    assert verified.load(ledger.folder).entries == ledger.seen.entries
    record(root, lease())
    read, read_bytes = list[str](), Path.read_bytes

    def counted(path):
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    report = Ledger(root).verify_changed()
    assert report.problems == first.problems == []
    assert [name for name in read if layout.SEGMENT_NAME.fullmatch(name)] == [_newest(root).name]
    before, after = (sum(writer.events for writer in each.writers) for each in (first, report))
    assert after == before + 1
    state = verified.state(Ledger(root).folder)
    assert state.full_until_us < state.until_us
    assert "every byte read until" in state.text


def test_a_damaged_record_is_as_good_as_none(root):
    Ledger(root).verify()
    files = json.loads((root / "verified/files.json").read_bytes())
    for content in ("", "{", '{"format": 1, "known": [["segment"]]}', json.dumps({**files, "format": 1})):
        for name in ("state.json", "files.json"):
            (root / "verified" / name).write_text(content)
        assert verified.state(Ledger(root).folder) is None
        assert verified.load(Ledger(root).folder).entries == {}
    Ledger(root).verify()
    state = json.loads((root / "verified/state.json").read_bytes())
    for change in ({"heads": {"w": 5}}, {"heads": []}, {"problems": "0"}, {"by": None}):
        (root / "verified/state.json").write_text(json.dumps(state | change))
        assert verified.state(Ledger(root).folder) is None
    assert Ledger(root).verify().ok
