"""What a fork server refuses, what it makes of an engine's environment, and what an engine of it costs who asked for
it, without SGLang."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from rose.runtime.engines.forkserver import PACKET_BYTES_MAX, fork_engine
from rose.runtime.engines.forkserver_main import differing

#: Applies an environment in a process that has loaded what keeps copies, and prints what became of it.
APPLYING = """
import os
import huggingface_hub, torch
from huggingface_hub import constants
from rose.runtime.engines import forkserver_main
assert not constants.HF_HUB_OFFLINE and torch.get_num_threads() == 1
cores = sorted(os.sched_getaffinity(0))
forkserver_main._apply({
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "ROSE_PLUGIN_ROLE": "serving",
    "ROSE_ENGINE_START_CORES": str(cores[-1]),
})
from rose.runtime.coserving.hooks.settings import PluginSettings
assert huggingface_hub.is_offline_mode() and constants.HF_HUB_OFFLINE
assert torch.get_num_threads() == 2
assert "OTHER" not in os.environ and os.environ["ROSE_PLUGIN_ROLE"] == "serving"
assert os.sched_getaffinity(0) == {cores[-1]}
"""


@pytest.mark.parametrize(
    ("name", "matters"),
    [
        ("SGLANG_USE_CPU_ENGINE", True),
        ("TORCHDYNAMO_DISABLE", True),
        ("HF_HOME", True),
        ("OMP_WAIT_POLICY", True),
        ("ROSE_ENGINE_ON_CPU", True),
        ("OMP_NUM_THREADS", False),
        ("HF_HUB_OFFLINE", False),
        ("SGLANG_CPU_OMP_THREADS_BIND", False),
        ("ROSE_PLUGIN_ROLE", False),
        ("RAY_JOB_ID", False),
    ],
)
def test_only_what_is_read_while_sglang_loads_has_to_be_the_same(name, matters):
    assert differing({}, {name: "1"}) == differing({name: "1"}, {}) == ([name] if matters else [])
    assert differing({name: "1"}, {name: "1"}) == []


@pytest.mark.long
def test_an_environment_takes_effect_after_the_libraries_are_loaded():
    environment = {"OMP_NUM_THREADS": "1", "OTHER": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", APPLYING], env=environment, capture_output=True, text=True, cwd=".", check=False
    )
    assert done.returncode == 0, done.stderr


def pidfds():
    targets = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(path.readlink()))
    return targets.count("anon_inode:[pidfd]")


def test_an_engine_that_has_ended_leaves_no_descriptor_behind(tmp_path):
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(tmp_path / "socket"))
    listening.listen()

    def serve():
        with listening, listening.accept()[0] as connection:
            _, received, _, _ = socket.recv_fds(connection, PACKET_BYTES_MAX, 2)
            child = subprocess.Popen(["sleep", "600"])
            received.append(os.pidfd_open(child.pid))
            socket.send_fds(connection, [json.dumps({"pid": child.pid}).encode()], received[-1:])
            for descriptor in received:
                os.close(descriptor)
            connection.sendall(json.dumps({"exit": child.wait()}).encode())

    server = threading.Thread(target=serve)
    server.start()
    before = pidfds()
    with (tmp_path / "log").open("wb") as log:
        engine = fork_engine(tmp_path / "socket", [], {}, log)
    assert engine.poll() is None
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(30) == -signal.SIGTERM
    engine.close()
    server.join()
    # Whoever still has it learns the same, and signals nobody.
    engine.send_signal(signal.SIGTERM)
    assert engine.poll() == -signal.SIGTERM
    del engine
    gc.collect()
    assert pidfds() == before
