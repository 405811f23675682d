import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rose.ledger.files import keys, layout, registry, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger


@pytest.fixture
def root(tmp_path):
    return layout.create(tmp_path / "ledger")


def _known(root):
    return list(dict.fromkeys(line.writer for line in registry.lines(root)))


def test_writers_that_come_at_once_are_all_named(root):
    names = [f"w{number}" for number in range(20)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(partial(registry.note, root), names))
    assert sorted(_known(root)) == sorted(names)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda lines: lines[1:], "line 1 does not follow"),
        (lambda lines: [lines[0], lines[2]], "line 2 does not follow"),
        (lambda lines: [b"{", *lines[1:]], "line 1 is damaged"),
    ],
)
def test_a_registry_that_was_changed_is_named_and_stops_no_writer(root, change, what):
    assert callable(change)
    for writer in "abc":
        segments.begin_epoch(root, segments.recover(root, writer))
    path = root / registry.FILE
    path.write_bytes(b"\n".join(change(path.read_bytes().splitlines())) + b"\n")
    with pytest.raises(LedgerError, match=what):
        registry.lines(root)
    segments.begin_epoch(root, segments.recover(root, "d"))
    assert any(what in problem for problem in Ledger(root).verify().problems)


def test_a_writer_that_was_killed_before_it_was_named_is_named_when_it_opens_again(root):
    segments.begin_epoch(root, segments.recover(root, "a"))
    lines = (root / registry.FILE).read_bytes()
    segments.begin_epoch(root, segments.recover(root, "b"))
    (root / registry.FILE).write_bytes(lines)
    assert Ledger(root).verify().problems == []
    segments.recover(root, "b")
    assert _known(root) == ["a", "b"]


def test_a_key_is_endorsed_by_one_that_may_and_by_no_other(root, other_key):
    segments.begin_epoch(root, segments.recover(root, "a"))
    registry.note(root, "b", other_key.public, other_key)
    third = "3" * 64
    registry.note(root, "c", third, other_key)
    assert registry.endorsements(registry.lines(root)).keys == {keys.load_or_make().public}
    with pytest.raises(LedgerError, match="may not endorse keys of b"):
        registry.endorse(root, other_key.public, other_key)
    assert registry.endorse(root, other_key.public, keys.load_or_make()) == ["b"]
    lines = registry.lines(root)
    assert registry.endorsements(lines).keys == {keys.load_or_make().public, other_key.public}
    assert registry.keys_of(lines, "b") == {other_key.public}
    found = {entry["key"]: entry for entry in registry.described(lines, other_key.public)}
    assert (found[keys.load_or_make().public]["root"], found[keys.load_or_make().public]["own"]) == (True, False)
    assert (found[other_key.public]["writers"], found[other_key.public]["own"]) == (["b"], True)
    assert found[other_key.public]["endorsed_by"] == keys.load_or_make().public
    assert [entry["may_endorse"] for entry in found.values()] == [True, False, False]
    assert _known(root) == ["a", "b", "c"]


def test_a_key_that_was_marked_may_endorse_others(root, other_key):
    segments.begin_epoch(root, segments.recover(root, "a"))
    registry.note(root, "b", other_key.public, other_key)
    third = "3" * 64
    registry.note(root, "c", third, other_key)
    assert registry.endorse(root, other_key.public, keys.load_or_make(), endorses=True) == ["b"]
    assert registry.endorsements(registry.lines(root)).pairs >= {("b", other_key.public), ("c", third)}
    assert registry.endorse(root, third, other_key, "a") == ["a"]
    assert list(registry.signature_faults(layout.ledger_id(root), registry.lines(root))) == []
    unmarked = (root / registry.FILE).read_bytes().replace(b', "endorses": true', b"", 1)
    lines = [registry.Line(**json.loads(text)) for text in unmarked.splitlines()]
    assert any("line 4" in fault for fault in registry.signature_faults(layout.ledger_id(root), lines))


def test_a_key_endorses_its_successor_for_its_own_writer_alone(root, other_key):
    segments.begin_epoch(root, segments.recover(root, "a"))
    segments.begin_epoch(root, segments.recover(root, "b"))
    registry.endorse(root, other_key.public, keys.load_or_make(), "b")
    third = "3" * 64
    with pytest.raises(LedgerError, match="may not endorse keys of a"):
        registry.endorse(root, third, other_key, "a")
    with pytest.raises(LedgerError, match="may not endorse keys of all writers"):
        registry.endorse(root, third, other_key, "b", endorses=True)
    assert registry.endorse(root, third, other_key, "b") == ["b"]
    assert ("b", third) in registry.endorsements(registry.lines(root)).pairs


def test_a_key_is_endorsed_before_its_writer_uses_it(root, other_key):
    segments.begin_epoch(root, segments.recover(root, "a"))
    for key, writer, says in (
        ("x", None, "is not a public key"),
        (other_key.public, None, "name its future writer with --writer"),
        (other_key.public, "b", "does not name the writer 'b'"),
    ):
        with pytest.raises(LedgerError, match=says):
            registry.endorse(root, key, keys.load_or_make(), writer)
    assert registry.endorse(root, other_key.public, keys.load_or_make(), "a") == ["a"]
    assert registry.keys_of(registry.lines(root), "a") == {keys.load_or_make().public, other_key.public}
    assert Ledger(root).verify().problems == []


@pytest.mark.parametrize("forged", ["line", "endorsement", "id"])
def test_lines_that_the_named_key_did_not_sign_are_found(root, other_key, forged):
    segments.begin_epoch(root, segments.recover(root, "a"))
    segments.begin_epoch(root, segments.recover(root, "b"))
    path = root / registry.FILE
    first, second = map(json.loads, path.read_bytes().splitlines())
    if forged == "id":
        (root / layout.MARKER).write_text(json.dumps({"rose_ledger": 1, "id": "0" * 32}))
    else:
        second["key" if forged == "endorsement" else "writer"] = other_key.public if forged == "endorsement" else "c"
        path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    problems = Ledger(root).verify().problems
    assert any("line 2, of writer" in problem and "is not signed by the key" in problem for problem in problems)


def test_a_writer_that_no_known_key_names_is_a_note_until_it_is_endorsed(root, tmp_path):
    """Another ledger's writer, signed by a key that this one knows too; a gateway without a key notes such a line."""
    elsewhere = layout.create(tmp_path / "elsewhere")
    segments.begin_epoch(elsewhere, segments.recover(elsewhere, "rig"))
    segments.begin_epoch(root, segments.recover(root, "a"))
    for folder in ("live/rig", "heads"):
        shutil.copytree(elsewhere / folder, root / folder, dirs_exist_ok=True)
    registry.note(root, "rig", keys.load_or_make().public, None)
    report = Ledger(root).verify()
    (note,) = report.notes
    assert report.problems == []
    assert note.startswith(f"writer rig is signed by {keys.load_or_make().public}, which no known key endorsed")
    registry.endorse(root, keys.load_or_make().public, keys.load_or_make(), "rig")
    assert Ledger(root).verify().notes == []
