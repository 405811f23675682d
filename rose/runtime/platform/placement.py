"""The cores, the scheduling class and the OOM rank of an engine's threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_SCHEDULER_TITLE = b"sglang::scheduler"  # Title of SGLang's computing processes; others serve HTTP and text.
WATCHER = "rose-watcher"  # The name of a scheduler's thread that waits for credit from serving.
_SERVER_THREADS = (
    WATCHER,
    "tokio-",
    "api-runtime",
    "to-scheduler",
    "from-scheduler",
    "tokenizer-",
    "detokenizer",
    "tracing-",
)
_PASSES_MAX = 10  # The maximum number of passes. Several are needed because new threads start meanwhile.
_LEAST_SESSION_NICE = 19
#: An engine's session has a third of the weight of a session that feeds the engine or trains. So the engine's turns on
#: a core do not delay a step.
_LESS_SESSION_NICE = 5
_OOM_SCORE_FIRST = 1000


def start_prefix(cores: Sequence[int], nice: int) -> list[str]:
    further = nice - os.getpriority(os.PRIO_PROCESS, 0)
    niceness = ["nice", "-n", str(further)] if further > 0 else []
    return [*niceness, "taskset", "-c", ",".join(map(str, cores))] if cores else niceness


def place_start(pid: int, cores: Sequence[int], nice: int) -> None:
    if cores:
        os.sched_setaffinity(pid, cores)
    os.setpriority(os.PRIO_PROCESS, pid, max(nice, os.getpriority(os.PRIO_PROCESS, pid)))


def is_scheduler(process: psutil.Process) -> bool:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(_SCHEDULER_TITLE)
    except OSError:
        return False


def place(
    processes: Iterable[psutil.Process], *, cores: Sequence[int], host_cores: Sequence[int], nice: int, idle_class: bool
) -> None:
    """Put computing threads on `cores`, others on `host_cores`. Raises PermissionError if SCHED_IDLE cannot be left."""
    for process in processes:
        scheduler = is_scheduler(process)
        idle = idle_class and scheduler
        for _ in range(_PASSES_MAX):
            changed = False
            for thread in _threads(process.pid):
                computes = scheduler and not _serves(process.pid, thread)
                changed |= _place_thread(thread, set(cores if computes else host_cores), nice, idle and computes)
            if not changed:
                break
        if idle:
            shared = set(cores) != set(host_cores)
            _weigh_session(process.pid, _LEAST_SESSION_NICE if shared else _LESS_SESSION_NICE)


def leave_idle_class() -> list[int]:
    """Move this process's threads from SCHED_IDLE to SCHED_OTHER. Return their ids, the calling thread last."""
    threads = []
    for thread in _threads(os.getpid()):
        with suppress(ProcessLookupError):
            if os.sched_getscheduler(thread) == os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                threads.append(thread)
    return sorted(threads, key=lambda thread: thread == threading.get_native_id())


def enter_idle_class(threads: Iterable[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def go_first_when_memory_runs_out() -> None:
    # Fails where /proc is read-only.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_FIRST))


def _threads(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []


def _serves(pid: int, thread: int) -> bool:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text().startswith(_SERVER_THREADS)
    except OSError:
        return False


def _place_thread(thread: int, cores: set[int], nice: int, idle: bool) -> bool:
    changed = False
    with suppress(ProcessLookupError):
        if cores and os.sched_getaffinity(thread) != cores:
            os.sched_setaffinity(thread, cores)
            changed = True
        if idle:
            if os.sched_getscheduler(thread) != os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
                changed = True
            # The niceness of the start would hold whenever the thread leaves the idle class.
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0))
            return changed
        if os.sched_getscheduler(thread) == os.SCHED_IDLE:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            changed = True
        if os.getpriority(os.PRIO_PROCESS, thread) != nice:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
            changed = True
    return changed


def _weigh_session(pid: int, nice: int) -> None:
    """Lower the CPU weight of an engine's own session, because Linux (autogroup) first divides cores among sessions."""
    with suppress(OSError):
        if os.getsid(pid) == os.getpgid(pid):
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
