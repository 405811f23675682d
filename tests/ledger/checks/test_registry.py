from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from rose.ledger import layout, segments
from rose.ledger.checks import registry
from rose.ledger.evidence import keys
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layout.create(tmp_path / "ledger")


def _known(root: Path) -> list[str]:
    return list(dict.fromkeys(line.writer for line in registry.lines(root)))


def test_writers_that_come_at_once_are_all_named(root: Path) -> None:
    names = [f"w{number}" for number in range(20)]
    threads = [threading.Thread(target=registry.note, args=(root, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(_known(root)) == sorted(names)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [lines[0], lines[2]], "line 2 does not follow"),
        (lambda lines: [b"{", *lines[1:]], "line 1 is damaged"),
    ],
)
def test_a_registry_that_was_changed_is_named_and_stops_no_writer(root: Path, change: object, what: str) -> None:
    assert callable(change)
    for writer in "abc":
        segments.first_epoch(root, writer)
    path = root / registry.FILE
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    with pytest.raises(LedgerError, match=what):
        registry.lines(root)
    segments.first_epoch(root, "d")
    assert any(what in problem for problem in verify(root).problems)


def test_a_writer_that_was_killed_before_it_was_named_is_named_when_it_opens_again(root: Path) -> None:
    segments.first_epoch(root, "a")
    lines = (root / registry.FILE).read_bytes()
    segments.first_epoch(root, "b")
    (root / registry.FILE).write_bytes(lines)
    assert verify(root).problems == []
    segments.recover(root, "b")
    assert _known(root) == ["a", "b"]


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> keys.Key:
    """Another host's key."""
    with monkeypatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "other.key"))
        return own()


def own() -> keys.Key:
    key = keys.load_or_make()
    assert key is not None
    return key


def test_a_key_is_endorsed_by_one_that_may_and_by_no_other(root: Path, other: keys.Key) -> None:
    segments.first_epoch(root, "a")
    registry.note(root, "b", other.public, other)
    third = "3" * 64
    registry.note(root, "c", third, other)
    assert registry.endorsements(registry.lines(root)).keys == {own().public}
    with pytest.raises(LedgerError, match="of this user may not endorse keys of b"):
        registry.endorse(root, other.public, other)
    assert registry.endorse(root, other.public, own()) == ["b"]
    lines = registry.lines(root)
    assert registry.endorsements(lines).keys == {own().public, other.public}
    assert registry.keys_of(lines, "b") == {other.public}
    found = {entry["key"]: entry for entry in registry.described(lines, other.public)}
    assert (found[own().public]["root"], found[own().public]["own"]) == (True, False)
    assert (found[other.public]["writers"], found[other.public]["own"]) == (["b"], True)
    assert found[other.public]["endorsed_by"] == own().public
    assert [entry["may_endorse"] for entry in found.values()] == [True, False, False]
    assert _known(root) == ["a", "b", "c"]


def test_a_key_that_was_marked_may_endorse_others(root: Path, other: keys.Key) -> None:
    segments.first_epoch(root, "a")
    registry.note(root, "b", other.public, other)
    # What a key endorsed before it was marked counts from then on.
    third = "3" * 64
    registry.note(root, "c", third, other)
    assert registry.endorse(root, other.public, own(), endorses=True) == ["b"]
    assert registry.endorsements(registry.lines(root)).pairs >= {("b", other.public), ("c", third)}
    assert registry.endorse(root, third, other, "a") == ["a"]
    assert list(registry.signature_faults(layout.ledger_id(root), registry.lines(root))) == []
    unmarked = (root / registry.FILE).read_bytes().replace(b', "endorses": true', b"", 1)
    assert any("line 4" in fault for fault in registry.signature_faults(layout.ledger_id(root), _parsed(unmarked)))


def _parsed(content: bytes) -> list[registry.Line]:
    """The lines, whatever they follow."""
    return [registry.Line(**json.loads(text)) for text in content.splitlines()]


def test_a_key_endorses_its_successor_for_its_own_writer_alone(root: Path, other: keys.Key) -> None:
    segments.first_epoch(root, "a")
    segments.first_epoch(root, "b")
    registry.endorse(root, other.public, own(), "b")
    third = "3" * 64
    with pytest.raises(LedgerError, match="may not endorse keys of a"):
        registry.endorse(root, third, other, "a")
    with pytest.raises(LedgerError, match="may not endorse keys of all writers"):
        registry.endorse(root, third, other, "b", endorses=True)
    assert registry.endorse(root, third, other, "b") == ["b"]
    assert ("b", third) in registry.endorsements(registry.lines(root)).pairs


def test_a_key_is_endorsed_before_its_writer_uses_it(root: Path, other: keys.Key) -> None:
    segments.first_epoch(root, "a")
    for key, writer, says in (
        ("x", None, "is not a public key"),
        (other.public, None, "name the one that will with --writer"),
        (other.public, "b", "does not name the writer 'b'"),
    ):
        with pytest.raises(LedgerError, match=says):
            registry.endorse(root, key, own(), writer)
    assert registry.endorse(root, other.public, own(), "a") == ["a"]
    assert registry.keys_of(registry.lines(root), "a") == {own().public, other.public}
    assert verify(root).problems == []


@pytest.mark.parametrize("forged", ["line", "endorsement", "id"])
def test_lines_that_the_named_key_did_not_sign_are_found(root: Path, other: keys.Key, forged: str) -> None:
    segments.first_epoch(root, "a")
    segments.first_epoch(root, "b")
    path = root / registry.FILE
    first, second = map(json.loads, path.read_bytes().splitlines())
    if forged == "id":
        (root / layout.MARKER).write_text(json.dumps({"rose_ledger": 1, "id": "0" * 32}))
    else:
        second["key" if forged == "endorsement" else "writer"] = other.public if forged == "endorsement" else "c"
        path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    problems = verify(root).problems
    assert any("line 2, of writer" in problem and "is not signed by the key" in problem for problem in problems)


def test_a_writer_that_no_known_key_names_is_a_note_until_it_is_endorsed(root: Path, tmp_path: Path) -> None:
    """Another ledger's writer, signed by a key that this one knows too; a gateway without a key notes such a line."""
    elsewhere = layout.create(tmp_path / "elsewhere")
    segments.first_epoch(elsewhere, "rig")
    segments.first_epoch(root, "a")
    for folder in ("live/rig", "heads"):
        shutil.copytree(elsewhere / folder, root / folder, dirs_exist_ok=True)
    registry.note(root, "rig", own().public, None)
    report = verify(root)
    (note,) = report.notes
    assert report.problems == []
    assert note.startswith(f"writer rig is signed by {own().public}, which no known key endorsed")
    registry.endorse(root, own().public, own(), "rig")
    assert verify(root).notes == []
