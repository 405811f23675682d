import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.coserving.settings import PluginSettings
from rose.runtime.engines.forkserver import ForkError, ForkServer, fork_engine
from rose.runtime.engines.sglang import EngineError, EngineProcess
from rose.runtime.platform import placement
from tests.runtime.conftest import ENVIRONMENT, engine_spec

pytestmark = pytest.mark.live

#: Starts engines of these specs from a process of its own, and says their process ids, and when they are ready.
REQUESTER = """
import pickle, sys, time
from pathlib import Path
from rose.runtime.engines.sglang import EngineProcess
engines = [EngineProcess(spec) for spec in pickle.loads(Path(sys.argv[1]).read_bytes())]
for engine in engines:
    engine.launch()
print(*(engine.pid for engine in engines), flush=True)
for engine in engines:
    engine.wait_ready()
print("ready", flush=True)
time.sleep(600)
"""


def make_spec(folder, model, server, name="engine", *, gated=False, **changes):
    folder = folder / name
    folder.mkdir()
    page = ArbiterPage.create(folder / "page")
    cores = sorted(os.sched_getaffinity(0))
    own = {"engine_id": name, "model": str(model), "cores": cores[:1], "host_cores": cores[-1:], "token_ids_only": True}
    own |= {"plugin": PluginSettings("rollout", page.path, folder, gated), "fork_server": server.path}
    return page, engine_spec(folder, **own | changes)


def requester(folder, *specs):
    (folder / "specs").write_bytes(pickle.dumps(specs))
    process = subprocess.Popen(
        [sys.executable, "-c", REQUESTER, str(folder / "specs")], stdout=subprocess.PIPE, text=True
    )
    return process, [int(word) for word in process.stdout.readline().split()]


def titles(engine):
    return sorted(" ".join(process.cmdline()).strip() for process in engine.processes())


def generate(engine):
    return engine.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}, timeout_s=60)


@pytest.mark.long
def test_engines_are_forked_with_settings_of_their_own(fork_server, tmp_path, tiny_policy, gone):
    cores = sorted(os.sched_getaffinity(0))
    _page, lent_spec = make_spec(
        tmp_path, tiny_policy, fork_server, "lent", gated=True, idle_class=True, start_cores=cores[-1:], nice=5
    )
    _, own_spec = make_spec(tmp_path, tiny_policy, fork_server, "own", cores=cores, idle_class=True)
    lent, own = EngineProcess(lent_spec), EngineProcess(own_spec)
    try:
        lent.launch()
        own.launch()
        lent.wait_ready()
        own.wait_ready()
        assert "zmq" in Path(f"/proc/{fork_server.process.pid}/maps").read_text()
        assert titles(lent) == titles(own)
        # HTTP and text are threads of the scheduler, where SGLang has its server there.
        assert titles(lent) == ["rose.runtime.engines.launch forked", "sglang::scheduler"]
        scores = {Path(f"/proc/{process.pid}/oom_score_adj").read_text() for process in lent.processes()}
        assert scores == {"1000\n"}
        # The kernel weighs threads by class and niceness within a session only: a lent engine's is that of serving.
        assert os.getsid(lent.pid) == fork_server.process.pid
        assert os.getsid(own.pid) == own.pid
        assert "ROSE gates this engine" in lent_spec.log.read_text()
        assert "ROSE gates this engine" not in own_spec.log.read_text()
        lent.settle()
        own.settle()
        for process in lent.processes():
            scheduler = process.cmdline()[0] == "sglang::scheduler"
            for thread in process.threads():
                computes = scheduler and not placement._serves(process.pid, thread.id)
                assert os.sched_getaffinity(thread.id) == ({cores[0]} if computes else {cores[-1]})
                assert os.sched_getscheduler(thread.id) == (os.SCHED_IDLE if computes else os.SCHED_OTHER)
        generate(lent)
        own.stop()
        assert not own.alive
        assert gone(own.pid) == []
        assert lent.alive
    finally:
        own.stop()
        lent.stop()
    assert gone(lent.pid) == []
    assert fork_server.process.poll() is None


def test_while_it_loads_an_engine_stays_on_its_start_cores_and_below_serving(fork_server, tmp_path, tiny_policy):
    core, nice = max(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, fork_server.process.pid) + 5
    engine = EngineProcess(make_spec(tmp_path, tiny_policy, fork_server, start_cores=[core], nice=nice)[1])
    seen = set()
    try:
        engine.launch()
        loading = threading.Thread(target=engine.wait_ready)
        loading.start()
        while loading.is_alive():
            for process in engine.processes():
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    threads = [thread.id for thread in process.threads()]
                    seen |= {(tuple(os.sched_getaffinity(one)), os.getpriority(0, one)) for one in threads}
            loading.join(0.02)
        assert "sglang::scheduler" in titles(engine)
    finally:
        engine.kill()
    assert seen == {((core,), nice)}


def test_killing_the_requester_ends_its_engines_alone(fork_server, tmp_path, tiny_policy, gone):
    one, two = (make_spec(tmp_path, tiny_policy, fork_server, name)[1] for name in ("one", "two"))
    engine = EngineProcess(one)
    try:
        engine.launch()
        process, (pid,) = requester(tmp_path, two)
        assert process.stdout.readline().strip() == "ready"
        process.kill()
        process.wait()
        assert gone(pid) == []
        engine.wait_ready()
        assert fork_server.process.poll() is None
    finally:
        engine.stop()


def test_an_engine_whose_scheduler_is_killed_ends(fork_server, tmp_path, tiny_policy, gone):
    engine = EngineProcess(make_spec(tmp_path, tiny_policy, fork_server)[1])
    try:
        engine.launch()
        engine.wait_ready()
        scheduler = next(p for p in engine.processes() if p.cmdline()[0].startswith("sglang::scheduler"))
        scheduler.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 60
        while engine.alive and time.monotonic() < deadline:
            time.sleep(0.1)
        with pytest.raises(EngineError, match="ended before it was ready"):
            engine.wait_ready()
        assert gone(engine.pid) == []
    finally:
        engine.kill()


@pytest.mark.long
def test_killing_the_server_leaves_engines_and_the_next_is_a_fresh_process(tmp_path, tiny_policy, gone):
    server = ForkServer.start(tmp_path / "socket", tmp_path / "log", ENVIRONMENT)
    engine = EngineProcess(make_spec(tmp_path, tiny_policy, server)[1])
    fresh_spec = make_spec(tmp_path, tiny_policy, server, "fresh")[1]
    try:
        engine.launch()
        engine.wait_ready()
        server.process.kill()
        server.process.wait()
        generate(engine)
        process, (pid,) = requester(tmp_path, fresh_spec)
        first = fresh_spec.log.read_text().splitlines()[0]
        assert "this engine starts as a fresh process" in first
        assert str(server.path) in first
        assert "rose.runtime.engines.launch" in psutil.Process(pid).cmdline()
        process.kill()
        process.wait()
        assert gone(pid) == []
        generate(engine)
        engine.stop()
        assert not engine.alive
        assert gone(engine.pid) == []
    finally:
        engine.kill()
        server.stop()


def answers(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.settimeout(180)
            connection.connect(str(path))
            connection.send(b"{}")
            return bool(connection.recv(1 << 16))
        except OSError:
            return False


def test_a_server_that_cannot_start_forks_nothing_and_says_where_it_was_asked(tmp_path):
    server = ForkServer.start(tmp_path / "socket", tmp_path / "log", {"PYTHONHOME": str(tmp_path / "nowhere")})
    with (tmp_path / "engine").open("wb") as log, pytest.raises(ForkError, match=str(server.path)):
        fork_engine(server.path, [], os.environ, log)
    assert server.process.poll() is not None or server.process.wait(10) != 0
    assert not answers(server.path)
    server.stop()


def test_settings_that_were_read_while_loading_are_refused_by_name(fork_server, tmp_path):
    environment = {**os.environ, "SGLANG_FORCE_STREAM_INTERVAL": "7"}
    with (
        (tmp_path / "log").open("wb") as log,
        pytest.raises(ForkError, match=r"refused: .*SGLANG_FORCE_STREAM_INTERVAL"),
    ):
        fork_engine(fork_server.path, [], environment, log)
    assert fork_server.process.poll() is None


def test_an_engine_that_cannot_start_says_why(fork_server, tmp_path, gone):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    engine = EngineProcess(make_spec(tmp_path, broken, fork_server)[1])
    engine.launch()
    with pytest.raises(EngineError, match=r"engine .*ended before it was ready"):
        engine.wait_ready()
    assert "Traceback" in engine.spec.log.read_text()
    assert gone(engine.pid) == []
    engine.stop()
