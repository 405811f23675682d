"""A file system of a few megabytes, for what happens when a disk is full."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run_on_small_disk(tmp_path: Path, size: str, code: str, *arguments: object) -> str:
    """Run Python code with a new file system of `size` in `sys.argv[1]`, in a mount namespace; returns its output."""
    script, disk = tmp_path / "program.py", tmp_path / "disk"
    script.write_text(code)
    disk.mkdir()
    given = " ".join(map(str, arguments))
    inside = f"mount -t tmpfs -o size={size} none {disk} && exec {sys.executable} {script} {disk} {given}"
    try:
        allowed = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("mount namespaces are not allowed here, so no small file system can be made")
    done = subprocess.run(["unshare", "-rm", "sh", "-c", inside], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
