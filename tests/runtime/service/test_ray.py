"""Joining a Ray cluster that is not there: what is wrong is said soon, and in words."""

from __future__ import annotations

import os
import pty
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from rose import private_folder
from rose.errors import UserError
from rose.runtime.engines.ports import free_port
from rose.runtime.errors import DeploymentError, FolderError, PartDiedError
from rose.runtime.service import fabric, local_ray
from rose.runtime.service.fabric import Fabric


@pytest.mark.parametrize("address", ["nonsense", "auto", "ray://10.0.0.1:10001", "10.0.0.1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UserError, match="must be a host and port of Ray's head"):
        Fabric("test").join(address)


def test_an_address_at_which_nothing_listens_is_named(monkeypatch):
    monkeypatch.setattr(fabric, "_LISTENS_S", 0.2)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(DeploymentError, match=f"no Ray cluster is at {address} .*refused.*correct `--address`"):
        Fabric("test").join(address)


def test_of_an_actor_that_could_not_begin_the_reason_comes_first(monkeypatch):
    traceback = "ray::HostActor.__init__() (pid=7)\n  File ...\nrose.runtime.errors.FolderError: state: /nope\n"
    died = ray.exceptions.RayActorError(
        error_msg=f"The actor died because of an error raised in its creation task, {traceback}", actor_init_failed=True
    )

    def get(*_, **__):
        raise died

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(PartDiedError, match=r"^rose.runtime.errors.FolderError: state: /nope$"):
        Fabric("test").answer(None, 1.0)


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
