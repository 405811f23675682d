"""A controller that did not run for a while, such as one on a paused machine or behind a slow disk, heard nobody.

What was sent to it meanwhile waits in its sockets when it looks who is silent.
"""

from __future__ import annotations

from rose.runtime.scheduling.devices import Devices
from rose.runtime.scheduling.engines.workers import WorkerTable
from rose.runtime.scheduling.runs.registry import Runs

#: A controller that looks at the time late by no more than this was only busy.
_STALL_NS = 1_000_000_000


def excused_ns(at_ns: int, late_ns: int, now_ns: int) -> int:
    """When somebody was, or is to be, heard of, less the silence of the last `late_ns`: at most until now."""
    return max(at_ns, min(at_ns + late_ns, now_ns))


def excuse(late_ns: int, now_ns: int, workers: WorkerTable, devices: Devices, runs: Runs) -> None:
    """Who looks at the time comes late by so much: hold that against nobody. What is left of leases is not longer."""
    if late_ns <= _STALL_NS:
        return
    for worker in workers:
        worker.expect(excused_ns(worker.due_ns, late_ns, now_ns))
    for device in devices:
        device.due_ns = excused_ns(device.due_ns, late_ns, now_ns)
    for run in runs:
        run.heard_ns = excused_ns(run.heard_ns, late_ns, now_ns)
