from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rose.ledger import layout, segments
from rose.ledger.checks import registry
from rose.ledger.layout import LedgerError
from rose.ledger.verify import verify


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return layout.create(tmp_path / "ledger")


def test_every_writer_is_named_once_in_the_order_in_which_they_came(root: Path) -> None:
    assert registry.known(root) is None
    for writer in ("b", "a", "b"):
        registry.note(root, writer)
    assert registry.known(root) == ("b", "a")


def test_writers_that_come_at_once_are_all_named(root: Path) -> None:
    names = [f"w{number}" for number in range(20)]
    threads = [threading.Thread(target=registry.note, args=(root, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(registry.known(root) or ()) == sorted(names)


def test_a_ledger_from_before_there_was_one_gets_one_with_its_next_writer(root: Path) -> None:
    tail = segments.Tail("a", epoch=-1, next_index=0, next_seq=0, sha256="")
    segments.begin_epoch(root, tail)
    (root / registry.FILE).unlink()
    assert verify(root).problems == []
    segments.first_epoch(root, "b")
    assert registry.known(root) == ("a", "b")


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
        registry.known(root)
    segments.first_epoch(root, "d")
    assert any(what in problem for problem in verify(root).problems)


def test_a_writer_that_was_killed_before_it_was_named_is_named_when_it_opens_again(root: Path) -> None:
    segments.first_epoch(root, "a")
    lines = (root / registry.FILE).read_bytes()
    segments.first_epoch(root, "b")
    (root / registry.FILE).write_bytes(lines)
    assert verify(root).problems == []
    segments.recover(root, "b")
    assert registry.known(root) == ("a", "b")
