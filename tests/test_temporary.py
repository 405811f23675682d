"""Temporary folders go with their process, or with the next that makes one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rose.temporary import TemporaryFolder


def test_only_folders_that_no_process_has_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = TemporaryFolder("p-")
    for name in ("p-left", "p-young", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "p-file").touch()
    (tmp_path / "p-link").symlink_to(tmp_path / "other")
    for path in tmp_path.iterdir():
        if path.name != "p-young":
            os.utime(path, (0, 0), follow_symlinks=False)
    others = {"p-young", "p-file", "p-link", "other"}
    with TemporaryFolder("p-") as path:
        assert {path.name for path in tmp_path.iterdir()} == {*others, held.path.name, path.name}
    held.close()
    assert {path.name for path in tmp_path.iterdir()} == others
    assert (tmp_path / "other" / "file").exists()
