"""What a fleet's ledger is told of its run: that it began, goes on with another fleet file, or has ended."""

from __future__ import annotations

import json
import os
from typing import Literal

import psutil

from rose.config import FleetConfig
from rose.events import Run
from rose.runtime.fleet import recorded_config
from rose.runtime.traffic.trace import fit, open_trace


def fleet_event(config: FleetConfig, action: Literal["started", "ended"], reason: str | None = None) -> Run:
    """With the facts of this host, which is the fleet's first one."""
    host = {
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "platform": os.uname().machine,
    }
    # Of one that ended it is known, and its file may be gone.
    trace = open_trace(config.traffic) if action == "started" else None
    fitted = None if trace is None else fit(trace, config.traffic)
    return Run(
        action=action,
        reason=reason,
        name=config.name,
        config_json=recorded_config(config),
        host_json=json.dumps(host),
        tags_json=json.dumps(config.tags),
        # What `rose traffic` replays on it.
        trace=None if fitted is None else fitted.trace.name,
        trace_keep_share=None if fitted is None else fitted.keep_share,
        trace_length_scale=None if fitted is None else fitted.length_scale,
        trace_output_length_scale=None if fitted is None else fitted.output_length_scale,
        trace_time_scale=None if fitted is None else fitted.time_scale,
    )
