"""Checks this host for `rose doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil

from rose.terminal import Screen, echo_data, styled

Status = Literal["ok", "missing", "absent"]

#: Optional packages with their remedies.
_OPTIONAL = {
    "polars": 'to price a ledger: pip install "rose-serving[pricing]"',
    "streamlit": 'to run the dashboard: pip install "rose-serving[dashboard]"',
}

_HOOK_PROBE = """
import os
os.environ["ROSE_PLUGIN_ROLE"] = "serving"
os.environ["ROSE_PLUGIN_PAGE"] = os.environ["ROSE_PLUGIN_STAGING"] = os.devnull
os.environ["ROSE_PLUGIN_GATED"] = "0"
import rose.runtime.engines.launch
from sglang.srt.plugins import load_plugins
from rose.runtime.coserving.plugin import TARGETS, require_hooks
load_plugins()
require_hooks()
print(len(TARGETS))
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check. A `missing` item stops a live run. An `absent` item is optional."""

    what: str
    status: Status
    detail: str
    remedy: str = ""


def main(as_json: bool) -> int:
    """Print the results of all checks. Return 0 if a live run can start here, else 1."""
    findings = [*_host(), *_packages(), _sglang_hooks(), *_gpus()]
    if as_json:
        echo_data(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        from rich.table import Table

        table = Table(title="Host checks", show_lines=False)
        for column in ("", "check", "result", "remedy"):
            table.add_column(column)
        colours = {"ok": "green", "missing": "red", "absent": "yellow"}
        for finding in findings:
            mark = styled(finding.status, colours[finding.status])
            table.add_row(mark, finding.what, finding.detail, finding.remedy)
        Screen().print(table)
    return 1 if any(finding.status == "missing" for finding in findings) else 0


def _host() -> list[Finding]:
    from rose.runtime.preflight import ENGINE_BYTES, REST_BYTES

    folder, cores, needed = Path.cwd(), len(os.sched_getaffinity(0)), 3 * ENGINE_BYTES + REST_BYTES
    available, free = psutil.virtual_memory().available, shutil.disk_usage(Path.cwd()).free
    version, gib = ".".join(map(str, sys.version_info[:3])), 1 << 30
    return [
        _needed("Python", sys.version_info >= (3, 11), version, "install Python 3.11 or later"),
        _needed("CPU cores", cores >= 2, f"{cores} available", "the demo needs two cores"),
        _needed(
            "memory",
            available >= needed,
            f"{available / gib:.1f} GiB available",
            f"the demo needs {needed / gib:.0f} GiB",
        ),
        _needed("disk", free >= 2 * gib, f"{free / gib:.0f} GiB free in {folder}", "free 2 GiB for models and ledger"),
    ]


def _needed(what: str, good: bool, detail: str, remedy: str) -> Finding:
    return Finding(what, "ok", detail) if good else Finding(what, "missing", detail, remedy)


def _packages() -> list[Finding]:
    remedy = "without a GPU: `make demo` in a checkout; with a GPU: pip install '.[gpu]'"
    findings = []
    for package in ("torch", "sglang", "ray", "duckdb", "gymnasium", *_OPTIONAL):
        try:
            findings.append(Finding(package, "ok", importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            status: Status = "absent" if package in _OPTIONAL else "missing"
            findings.append(Finding(package, status, "not installed", _OPTIONAL.get(package, remedy)))
    return findings


def _sglang_hooks() -> Finding:
    what = "SGLang with ROSE's hooks"
    if importlib.util.find_spec("sglang") is None:
        return Finding(what, "missing", "SGLang is not installed", "see the line above")
    from rose.runtime.coserving.meter import meter_gpu
    from rose.runtime.platform import cpu

    on_cpu = not meter_gpu.survey()[0]
    environment = {**os.environ, **({"ROSE_ENGINE_ON_CPU": "1", **cpu.ENVIRONMENT} if on_cpu else {})}
    probe = subprocess.run(
        [sys.executable, "-c", _HOOK_PROBE], capture_output=True, text=True, env=environment, timeout=180, check=False
    )
    if probe.returncode == 0:
        count = probe.stdout.strip().splitlines()[-1]
        return Finding(what, "ok", f"{count} hooks applied, {'CPU path' if on_cpu else 'GPU path'}")
    lines = probe.stderr.strip().splitlines() or ["no output"]
    return Finding(what, "missing", lines[-1], "install sglang 0.5.23 beside this package, in one environment")


def _gpus() -> list[Finding]:
    from rose.runtime.coserving.meter import meter_gpu

    cards, why = meter_gpu.survey()
    if cards:
        looks = [Finding("NVML", "ok", "lists the GPUs"), Finding("GPUs", "ok", ", ".join(name for name, _ in cards))]
        power = "; ".join(f"GPU {index}: {reading}" for index, (_, reading) in enumerate(cards))
    else:
        looks = [
            Finding("NVML", "absent", why, "not needed on CPU cores; part of the NVIDIA driver"),
            Finding("GPUs", "absent", "none found", "use CPU cores as devices, or install the NVIDIA driver"),
        ]
        power = "not measured; the busy share of the cores is recorded"
    if "not measured" in power:
        return [*looks, Finding("power", "absent", power, "nothing to do: reports take the power from the price book")]
    return [*looks, Finding("power", "ok", power)]
