"""A ledger on a file system that takes no writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rose.events import Lease
from rose.ledger.layout import LedgerError
from rose.ledger.writer import LedgerWriter


def test_a_writer_says_that_the_folder_cannot_be_written(tmp_path: Path, lease: Callable[..., Lease]) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "r") as writer:
        writer.record(lease())
    mount = f"mount --bind {root} {root} && mount -o remount,ro,bind {root}"
    code = f"from rose.ledger.writer import LedgerWriter; LedgerWriter.open({str(root)!r}, 'w', 'r')"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c", f'{mount} || exit 77; exec "$0" -c "$1"']
    done = subprocess.run([*inside, sys.executable, code], capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this host lets no user mount")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"rose.ledger.layout.LedgerError: cannot write to the ledger at {root}: [Errno 30] Read-only"
    )


def test_a_folder_for_names_that_is_a_file_is_named(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    LedgerWriter.open(root, "w", "r").close()
    (root / "locks" / "w.lock").unlink()
    (root / "locks" / "w.lock").mkdir()
    with pytest.raises(LedgerError, match=r"cannot write to the ledger at .*: \[Errno 21\] Is a directory"):
        LedgerWriter.open(root, "w", "r")
