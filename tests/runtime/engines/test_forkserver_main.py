import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants

from rose.private_files import NotPrivateError
from rose.runtime.engines import adoption, forkserver, forkserver_main
from rose.runtime.engines.forkserver import PACKET_BYTES_MAX, ForkError, ForkServer, fork_engine, installed_code
from rose.runtime.engines.forkserver_main import differing


def test_only_what_is_read_while_sglang_loads_has_to_be_the_same():
    for name in ("SGLANG_USE_CPU_ENGINE", "TORCHDYNAMO_DISABLE", "HF_HOME", "OMP_WAIT_POLICY", "ROSE_ENGINE_ON_CPU"):
        assert differing({}, {name: "1"}) == differing({name: "1"}, {}) == [name]
        assert differing({name: "1"}, {name: "1"}) == []
    for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TORCHINDUCTOR_CACHE_DIR", "ROSE_PLUGIN_ROLE", "RAY_JOB_ID"):
        assert differing({}, {name: "1"}) == differing({name: "1"}, {}) == []


def apply_an_environment():
    assert not constants.HF_HUB_OFFLINE
    applied = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    forkserver_main._apply(applied)
    assert huggingface_hub.is_offline_mode()
    assert torch.get_num_threads() == 2
    assert dict(os.environ) == applied


def test_an_environment_takes_effect_after_the_libraries_are_loaded(capfd):
    child = os.fork()
    if child == 0:
        try:
            apply_an_environment()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, capfd.readouterr().err


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
            child.wait()

    server = threading.Thread(target=serve)
    server.start()
    gc.collect()
    before = pidfds()
    with (tmp_path / "log").open("wb") as log:
        engine = fork_engine(tmp_path / "socket", [], {}, log)
    assert engine.poll() is None
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(30) == adoption.UNKNOWN_EXIT
    server.join()
    engine.send_signal(signal.SIGTERM)
    assert engine.poll() == adoption.UNKNOWN_EXIT
    del engine
    gc.collect()
    assert pidfds() == before


@pytest.fixture
def refused(tmp_path, monkeypatch):
    # Both would stay with this process.
    monkeypatch.setattr(forkserver_main, "load", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    creator = os.pidfd_open(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        server = forkserver_main.Server(listening, creator)

        def ask():
            answering = threading.Thread(target=server._accept)
            answering.start()
            with (tmp_path / "log").open("wb") as log, pytest.raises(ForkError) as caught:
                fork_engine(tmp_path / "socket", [], dict(os.environ), log)
            answering.join()
            return str(caught.value).partition(" refused: ")[2]

        yield ask
        server._selector.close()
    os.close(creator)


def test_a_server_forks_only_the_code_that_is_installed_now(refused, tmp_path, monkeypatch):
    assert refused() == "more than one thread runs in it"
    code = installed_code()
    for other in ("ROSE", "SGLang"):
        monkeypatch.setattr(forkserver, "installed_code", lambda name=other: code | {name: "another"})
        assert refused() == f"another {other} is installed since it was started"


def test_an_update_is_known_by_version_and_files(tmp_path, monkeypatch):
    file = tmp_path / "rose" / "runtime" / "engines" / "forkserver.py"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr(forkserver, "__file__", str(file))
    seen = [installed_code()]
    monkeypatch.setattr(adoption, "version", lambda _: "9")
    seen.append(installed_code())
    os.utime(file, ns=(1, 1))
    seen.append(installed_code())
    assert installed_code() == seen[-1]
    assert len({code["ROSE"] for code in seen}) == 3
    assert len({code["SGLang"] for code in seen}) == 2


def test_no_server_is_started_or_asked_where_another_user_could_answer(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(NotPrivateError, match="folder has mode 0777: other users may use it"):
        ForkServer.start(folder / "engines", tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other, (tmp_path / "log").open("wb") as log:
        other.bind(str(folder / "engines"))
        other.listen()
        with pytest.raises(ForkError, match="its folder is gone or other users can open it"):
            fork_engine(folder / "engines", [], {}, log)
