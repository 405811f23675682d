"""Which cores a running engine's threads use, and how the kernel ranks it, for its cores and for memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

#: SGLang names the processes that compute; its others serve HTTP and turn tokens into text.
_SCHEDULER_TITLE = "sglang::scheduler"
#: Threads that a scheduler with SGLang's embedded server runs for HTTP and text, by the beginnings of their names.
_SERVER_THREADS = ("tokio-", "api-runtime", "to-scheduler", "from-scheduler", "detokenizer", "tracing-")
#: Threads start while they are placed: passes until one finds nothing to do, and never more than these.
_PASSES_MAX = 10
#: The least a session of its own can weigh against the others.
_LEAST_SESSION_NICE = 19
#: What an engine's session weighs that shares its cores with no serving: a third of a session that feeds it or trains,
#: which is enough for its turns not to be the last of a step.
_LESS_SESSION_NICE = 5
#: The kernel's highest OOM score: that of a process which uses all of the memory.
_OOM_SCORE_FIRST = 1000


def is_scheduler(process: psutil.Process) -> bool:
    """Whether this is a process of SGLang that computes on the device."""
    try:
        return any(part.startswith(_SCHEDULER_TITLE) for part in process.cmdline()[:1])
    except psutil.Error:
        return False


def place(
    processes: Iterable[psutil.Process],
    *,
    cores: Sequence[int],
    host_cores: Sequence[int],
    nice: int,
    idle_class: bool,
) -> None:
    """Keep schedulers to `cores` and all other processes to `host_cores`, where those are named.

    `idle_class` gives schedulers SCHED_IDLE, under which any other thread that wakes on the core preempts them at
    once; whatever else there is leaves it, and gets niceness `nice`. A thread passes both on to the threads it starts.
    Raises PermissionError where the system does not let a thread leave that class or lower its niceness again.
    """
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


def go_first_when_memory_runs_out() -> None:
    """Have the kernel take this process, and what it starts from now on, before any other."""
    # Everybody may raise his own; where /proc is there to be read only, it stays as it is.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_FIRST))


def _threads(pid: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
    except FileNotFoundError:
        return []


def _serves(pid: int, thread: int) -> bool:
    """Whether a thread of a scheduler is of the server inside it."""
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text().startswith(_SERVER_THREADS)
    except OSError:
        return False


def _place_thread(thread: int, cores: set[int], nice: int, idle: bool) -> bool:
    """Whether anything had to be changed."""
    changed = False
    with suppress(ProcessLookupError):
        if cores and os.sched_getaffinity(thread) != cores:
            os.sched_setaffinity(thread, cores)
            changed = True
        if idle:
            if os.sched_getscheduler(thread) != os.SCHED_IDLE:
                os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
                changed = True
            return changed
        if os.sched_getscheduler(thread) == os.SCHED_IDLE:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            changed = True
        if os.getpriority(os.PRIO_PROCESS, thread) != nice:
            os.setpriority(os.PRIO_PROCESS, thread, nice)
            changed = True
    return changed


def _weigh_session(pid: int, nice: int) -> None:
    """Let an engine that leads a session give way to the other sessions too.

    With autogroups the kernel first divides a core among sessions, and looks at niceness and SCHED_IDLE only within
    one. Engines of one fork server share a session; one that was started by itself has its own.
    """
    with suppress(OSError):
        if os.getsid(pid) == os.getpgid(pid):
            Path(f"/proc/{pid}/autogroup").write_text(str(nice))
