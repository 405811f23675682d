import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.ledger.checks.chain import Chain
from rose.ledger.files import layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from tests import programs
from tests.ledger.conftest import copied, flip
from tests.ledger.evidence import ledgers
from tests.long_form import usual


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = layout.create(tmp_path_factory.mktemp("made") / "ledger")
    ledgers.write(root, "a", epochs=2, per_epoch=3)
    ledgers.write(root, "b", per_epoch=1)
    return root


@pytest.fixture
def root(made, tmp_path):
    return copied(made, tmp_path / "ledger")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    root = layout.create(tmp_path_factory.mktemp("sound") / "ledger")
    ledgers.write(root, "a", epochs=3)
    compaction.compact(Ledger(root), grace_s=0)
    compaction.compact(Ledger(root), grace_s=0)
    assert [part.state for part in layout.parts(root, "a")] == ["compacted", "live"]
    assert Ledger(root).verify().problems == []
    return root


def test_a_sound_ledger_is_counted(root):
    report = Ledger(root).verify()
    assert report.ok
    found = [(w.writer, w.segments, w.events, w.first_seq, w.last_seq) for w in report.writers]
    assert found == [("a", 8, 12, 0, 11), ("b", 2, 2, 0, 1)]
    with pytest.raises(LedgerError, match="is not a ledger"):
        Ledger(root.parent).verify()


@settings(max_examples=usual(12, long=200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_any_file_of_the_chain_is_found(sound, data):
    files = [path for part in ("live", "compacted") for path in sorted((sound / part).rglob("*")) if path.is_file()]
    path = data.draw(st.sampled_from(files))
    at = data.draw(st.integers(0, path.stat().st_size - 1))
    content = flip(path, at, 1 << data.draw(st.integers(0, 7)))
    try:
        problems = Ledger(sound).verify().problems
    finally:
        path.write_bytes(content)
    assert any(str(path.relative_to(sound)) in problem for problem in problems), problems


def _names(root, epoch):
    return sorted((root / f"live/a/{epoch:06d}").iterdir())


def _swap(root):
    _, first, second, _ = _names(root, 0)
    one, two = segments.sha256_in(first.name), segments.sha256_in(second.name)
    first.rename(first.with_name(f"000001-{two}.parquet.new"))
    second.rename(second.with_name(f"000002-{one}.parquet"))
    first.with_name(f"000001-{two}.parquet.new").rename(first.with_name(f"000001-{two}.parquet"))
    contents = [path.read_bytes() for path in _names(root, 0)[1:3]]
    for path, content in zip(_names(root, 0)[1:3], reversed(contents), strict=True):
        path.write_bytes(content)


def _folder(root):
    path = _names(root, 0)[1]
    path.unlink()
    path.mkdir()


def _foreign_segment(root):
    shutil.copy(next(root.glob("live/b/000000/000001-*")), root / "live/a/000001")


def _foreign_chain(root):
    other = layout.create(root.parent / "other")
    ledgers.write(other, "a", epochs=2, per_epoch=3, power_mw=lambda _: 8)
    shutil.rmtree(root / "live/a/000001")
    shutil.copytree(other / "live/a/000001", root / "live/a/000001")


@pytest.mark.parametrize(
    ("fault", "where", "what"),
    [
        (lambda root: _names(root, 0)[2].unlink(), "live/a/000000/000003-", "missing"),
        (lambda root: _names(root, 0)[0].unlink(), "live/a/000000/000001-", "does not follow"),
        (lambda root: _names(root, 0)[-1].unlink(), "live/a/000001/000000-", "a gap in seq"),
        (lambda root: _names(root, 1)[-1].unlink(), "live/a/000001/000003-", "the newest segment is missing"),
        (lambda root: shutil.rmtree(root / "live/a/000000"), "live/a", "epochs 0 to 0 are missing"),
        (lambda root: shutil.rmtree(root / "live/a/000001"), "live/a/000001/000003-", "the newest segment is missing"),
        (lambda root: shutil.rmtree(root / "live/b"), "live/b/000000/000001-", "the newest segment is missing"),
        (lambda root: (root / "live/a/000000/notes.parquet").touch(), "live/a/000000/notes.parquet", "a foreign file"),
        (lambda root: _names(root, 0)[1].write_bytes(b""), "live/a/000000/000001-", "bytes were changed"),
        (_folder, "live/a/000000/000001-", "it cannot be read (Is a directory)"),
        (_swap, "live/a/000000/000001-", "a segment is missing or repeated"),
        (_foreign_segment, "live/a/000001/000001-", "of writer 'b'"),
        (_foreign_chain, "live/a/000001/000000-", "does not follow the segment before it"),
        (lambda root: (root / "heads/a.json").write_text("{"), "heads/a.json", "damaged"),
    ],
)
def test_a_fault_is_found_and_its_place_named(root, fault, where, what):
    fault(root)
    problems = Ledger(root).verify().problems
    assert any(problem.startswith(where) and what in problem for problem in problems), problems


def test_an_epoch_that_is_merged_while_it_is_read_is_no_problem(root, monkeypatch):
    real = Chain._live

    def merged_at_once(chain, part):
        real(chain, part)
        if part.folder == "live/a/000000":
            # It stays for a while beside what it was merged to, for those who read it.
            compaction.compact(Ledger(root), grace_s=3600)

    monkeypatch.setattr(Chain, "_live", merged_at_once)
    report = Ledger(root).verify()
    assert report.problems == []
    assert [writer.events for writer in report.writers] == [12, 2]
    assert (layout.Part("a", 0, 0, "live"), True) in layout.all_parts(root, "a")


@settings(max_examples=usual(6, long=100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_change_under_a_seen_file_is_found_and_forgotten_again(sound, data):
    ledger = Ledger(sound)
    assert ledger.verify().ok
    files = [path for part in ("live", "compacted") for path in sorted((sound / part).rglob("*")) if path.is_file()]
    path = data.draw(st.sampled_from(files))
    content = flip(path, data.draw(st.integers(0, path.stat().st_size - 1)))
    try:
        problems = ledger.verify().problems
    finally:
        path.write_bytes(content)
    assert any(str(path.relative_to(sound)) in problem for problem in problems), problems
    assert ledger.verify().problems == []


@pytest.mark.parametrize("state", ["gone", "empty", "one behind"])
def test_a_head_that_does_not_name_the_newest_segment_is_a_fault_until_its_writer_is_opened(root, state):
    head = root / "heads/a.json"
    if state == "gone":
        head.unlink()
    elif state == "empty":
        head.write_bytes(b"")
    else:
        head.write_text(head.read_text().replace(_names(root, 1)[-1].name, _names(root, 1)[-2].name))
    (problem,) = Ledger(root).verify().problems
    assert "heads/a.json does not name it as the newest segment" in problem
    segments.recover(root, "a")
    assert Ledger(root).verify().problems == []


@pytest.mark.parametrize("stands", [False, True])
def test_a_writer_that_was_killed_beside_its_newest_segment_left_no_fault(root, stands):
    head, newest = root / "heads/a.json", _names(root, 1)[-1]
    before = newest.with_name(_names(root, 1)[-2].name)
    head.write_text(json.dumps({"segment": str(before.relative_to(root))}))
    segments.announce(root, "a", str(newest.relative_to(root)))
    if not stands:
        newest.unlink()
    assert Ledger(root).verify().problems == []


def test_too_few_open_files_are_no_damage(root):
    program = """
import os, resource, sys
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
print(Ledger(sys.argv[1]).verify().problems)
used = max(os.open("/dev/null", os.O_RDONLY) for _ in range(100)) + 1
for spare in range(4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        print(Ledger(sys.argv[1]).verify().problems)
    except LedgerError:
        print("refused")
"""
    ended, said = programs.run(program, root)
    assert (ended, set(said.split())) == (0, {"[]", "refused"})


@pytest.mark.parametrize("linked", ["live", "live/a", "live/a/000001", "segment", "writers.jsonl"])
def test_what_is_behind_a_link_is_named_as_not_checked(root, tmp_path, linked):
    path = min((root / "live/a/000000").iterdir()) if linked == "segment" else root / linked
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    report = Ledger(root).verify()
    assert (report.problems, report.ok) == ([], False)
    assert report.unchecked == [f"{path.relative_to(root)}: a link to {tmp_path / 'elsewhere'}"]
