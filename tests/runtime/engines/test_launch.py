import os
import subprocess
import sys
from pathlib import Path

from rose.runtime.engines import launch

PARENT = """
import os, subprocess, sys, time
child = "import time; from rose.runtime.engines import launch; launch.die_with_parent(%d); print(flush=True); "
child += "time.sleep(600)"
process = subprocess.Popen([sys.executable, "-c", child % os.getpid()], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(600)
"""

#: Serves without SGLang, as either engine: prints the OOM score of what the server starts.
SCORE = """
import os, subprocess, sys
from types import SimpleNamespace as Module
def nothing(*_, **__): pass
def run_server(_): subprocess.run(["cat", "/proc/self/oom_score_adj"], check=True)
sys.modules.update({
    "sglang.launch_server": Module(run_server=run_server),
    "sglang.srt.plugins": Module(load_plugins=nothing),
    "sglang.srt.server_args": Module(prepare_server_args=nothing),
    "sglang.srt.utils": Module(kill_process_tree=nothing),
    "rose.runtime.coserving.plugin": Module(require_hooks=nothing),
})
from rose.runtime.engines import launch
for role in ("serving", "rollout"):
    os.environ["ROSE_PLUGIN_ROLE"] = role
    launch.serve([])
"""


def cores_under(environment, monkeypatch):
    monkeypatch.delenv("ROSE_ENGINE_START_CORES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        launch.use_start_cores()
        return sorted(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)


def test_it_starts_on_the_cores_it_is_given(monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    assert cores_under({}, monkeypatch) == cores[:1]
    assert cores_under({"ROSE_ENGINE_START_CORES": str(cores[-1])}, monkeypatch) == cores[-1:]
    assert cores_under({"ROSE_ENGINE_START_CORES": ",".join(map(str, cores))}, monkeypatch) == cores


def test_it_dies_with_its_parent(gone):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    parent.stdout.readline()
    parent.kill()
    parent.wait()
    assert gone(parent.pid) == []


def test_when_memory_runs_out_a_rollout_engine_goes_first_with_all_that_it_starts():
    done = subprocess.run([sys.executable, "-c", SCORE], capture_output=True, text=True, check=True)
    assert done.stdout == Path("/proc/self/oom_score_adj").read_text() + "1000\n"
