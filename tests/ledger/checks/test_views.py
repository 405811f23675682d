"""A catalog that is about to be replaced is waited for; one that stays wrong is a fault."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rose.ledger import catalog, layout, segments
from rose.ledger.checks import views
from rose.ledger.examine import Seen
from tests.ledger.evidence import ledgers


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger whose newest epoch its catalog does not read, and nobody waits for it but where somebody is at work."""
    root = layout.create(tmp_path / "ledger")
    tail = ledgers.write(root, "a")
    catalog.refresh(root)
    segments.begin_epoch(root, tail)
    monkeypatch.setattr(views, "_ALONE_S", 0.1)
    return root


def problems(root: Path) -> list[str]:
    return views.faults(root, Seen())[0]


def test_a_catalog_that_stays_late_is_a_fault(late: Path) -> None:
    (first, *_) = problems(late)
    assert first.startswith("ledger.duckdb: view stored_event is not what this version of ROSE makes of the files here")
    catalog.refresh(late)
    assert problems(late) == []


def test_the_catalog_of_parts_that_are_being_moved_is_waited_for(late: Path) -> None:
    held = threading.Event()

    def move() -> None:
        with layout.moving_parts(late):
            held.set()
            time.sleep(0.5)
            catalog.refresh(late)

    mover = threading.Thread(target=move)
    mover.start()
    held.wait()
    assert problems(late) == []
    mover.join()


@pytest.mark.long
def test_the_catalog_of_a_writer_at_work_is_waited_for(late: Path) -> None:
    """Of another process, which hardly gets the processor; one that has ended is waited for no longer."""
    program = (
        "import sys; from pathlib import Path; from rose.ledger import catalog, writer\n"
        "root = Path(sys.argv[1]); writer.take_name(root, 'b'); print(flush=True); sys.stdin.read()\n"
        "catalog.refresh(root)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, late], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        assert layout.others_write(late)
        threading.Timer(0.5, other.stdin.close).start()
        assert problems(late) == []
    assert not layout.others_write(late)
    (late / "locks" / "c.lock").write_text("9" * 30)
    assert not layout.others_write(late), "no process has such a number"
