"""A Ray of one host's own, whose servers may die one by one."""

from __future__ import annotations

import os
import pty
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rose import private_folder
from rose.runtime.errors import FolderError
from rose.runtime.service import local_ray


def servers(folder: Path) -> list[str]:
    """The names of Ray's own servers that run for a folder."""
    temporary = str(local_ray._temporary(folder))
    names = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or [""]
        if temporary in " ".join(line) and Path(line[0]).name in ("gcs_server", "raylet"):
            names.append(Path(line[0]).name)
    return sorted(names)


@pytest.mark.long
def test_what_is_left_when_its_node_dies_ends_before_it_is_started_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # Of this test, as `start` sets them.
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")
    try:
        local_ray.start(tmp_path)
        (raylet,) = [process for process in local_ray._processes(tmp_path) if local_ray._name(process) == "raylet"]
        raylet.kill()
        raylet.wait(30)
        assert local_ray.find(tmp_path) is None
        local_ray.start(tmp_path)
        assert servers(tmp_path) == ["gcs_server", "raylet"]
    finally:
        local_ray.stop(tmp_path)
    assert servers(tmp_path) == []


_START = """
import sys
from pathlib import Path
from rose.runtime.service import local_ray
local_ray.start(Path(sys.argv[1]))
print("started", flush=True)
"""


def test_it_goes_on_when_the_terminal_that_it_was_started_at_is_closed(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _START, str(tmp_path)])
    try:
        said = b""
        # Reading fails once nobody has the other end.
        with suppress(OSError):
            while b"started" not in said and (more := os.read(terminal, 4096)):
                said += more
        os.close(terminal)
        os.waitpid(pid, 0)
        assert b"started" in said
        time.sleep(1.0)
        assert servers(tmp_path) == ["gcs_server", "raylet"]
        # Everybody may write to the folder that Ray makes in it.
        assert private_folder.is_private(local_ray._temporary(tmp_path).parent)
    finally:
        local_ray.stop(tmp_path)


def test_a_folder_that_cannot_be_made_is_named_with_its_field(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match=f"state: {tmp_path}/file/f cannot be made .* set `state` "):
        local_ray.start(tmp_path / "file" / "f")
