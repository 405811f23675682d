import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rose.runtime.engines.sglang import EngineProcess
from tests.runtime.conftest import engine_spec

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


@pytest.mark.parametrize("orphan_s", [None, 60.0])
def test_from_its_first_instruction_it_has_its_start_cores_and_niceness(tmp_path, orphan_s):
    core, nice = max(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0) + 3
    spec = engine_spec(tmp_path, start_cores=[core], nice=nice, orphan_s=orphan_s)
    engine, seen = EngineProcess(spec), set()
    engine.launch()
    try:
        while "-m" not in (process := psutil.Process(engine.pid)).cmdline() or process.name() in ("nice", "taskset"):
            assert engine.alive
        for _ in range(200):
            placed = {(tuple(os.sched_getaffinity(t.id)), os.getpriority(0, t.id)) for t in process.threads()}
            seen |= placed
            time.sleep(0.005)
        assert engine.alive
    finally:
        engine.kill()
    assert seen == {((core,), nice)}


def test_it_dies_with_its_parent(gone):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True)
    parent.stdout.readline()
    parent.kill()
    parent.wait()
    assert gone(parent.pid) == []


def test_when_memory_runs_out_a_rollout_engine_goes_first_with_all_that_it_starts():
    done = subprocess.run([sys.executable, "-c", SCORE], capture_output=True, text=True, check=True)
    assert done.stdout == Path("/proc/self/oom_score_adj").read_text() + "1000\n"
