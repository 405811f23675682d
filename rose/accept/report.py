"""What every benchmark prints and writes: its claims, each held against a target, and the detail behind them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pynvml
from rich.table import Table

from rose.terminal import Screen, echo

ROOT = Path(__file__).parents[2]
#: Of a copy of the checkout: the commit that it was made from.
COMMIT = "COMMIT"


@dataclass(frozen=True, slots=True)
class Claim:
    """A measured figure and the target it is held against."""

    name: str
    value: float
    unit: str
    target: float
    better: Literal["lower", "higher"]

    @property
    def holds(self) -> bool:
        """Whether the target is reached."""
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


@dataclass(slots=True)
class Report:
    """The outcome of one run of a benchmark."""

    benchmark: str
    quick: bool
    provenance: Literal["live", "simulated"] = "live"
    claims: list[Claim] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)

    def claim(self, name: str, value: float, unit: str, target: float, better: Literal["lower", "higher"]) -> None:
        """Add a figure; a claim that is not reached is reported like any other."""
        self.claims.append(Claim(name, value, unit, target, better))

    def show(self) -> None:
        """Print the claims as a table."""
        table = Table(title=f"{self.benchmark} on {device()}{' (quick: no claim about tails)' if self.quick else ''}")
        for column in ("claim", "measured", "unit", "target", "holds"):
            table.add_column(column, justify="right" if column in ("measured", "target") else "left")
        for claim in self.claims:
            sign = "≤" if claim.better == "lower" else "≥"
            holds = "yes" if claim.holds else "NO"
            table.add_row(claim.name, f"{claim.value:,.4g}", claim.unit, f"{sign} {claim.target:,g}", holds)
        Screen(width=140).print(table)

    def text(self) -> str:
        """What a file of the report holds."""
        return json.dumps(self.to_json(), indent=1) + "\n"

    def to_json(self) -> dict[str, Any]:
        """The report as the results folder keeps it."""
        claims = [
            {
                "name": claim.name,
                "value": claim.value,
                "unit": claim.unit,
                "target": claim.target,
                "better": claim.better,
                "holds": claim.holds,
            }
            for claim in self.claims
        ]
        return {
            "benchmark": self.benchmark,
            "commit": commit(),
            "device": device(),
            "quick": self.quick,
            "provenance": self.provenance,
            "claims": claims,
            "detail": self.detail,
        }


def device() -> str:
    """The machine, in words: its GPUs if it has any, processor, cores this process may use, memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{_gpus()}{model}, {len(os.sched_getaffinity(0))} cores, {memory_gib:.0f} GiB"


def _gpus() -> str:
    try:
        pynvml.nvmlInit()
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return ""
    return "".join(f"{name}, " for name in names)


def commit() -> str:
    """The commit that was measured, with `+` if the checkout differs from it; empty outside a checkout or a copy."""
    if (ROOT / COMMIT).is_file():
        return (ROOT / COMMIT).read_text().strip()
    try:
        described = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def arguments(about: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="under a minute; claims nothing about tails")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there as well")
    return parser


def finish(report: Report, file: Path | None) -> None:
    """Print the report, and write it to `file` if one was named; a run that measured nothing leaves the file alone."""
    report.show()
    if file is not None and not report.claims:
        echo(f"nothing was measured: {file} is left as it is", err=True)
    elif file is not None:
        file.write_text(report.text())
        echo(f"written to {file}", err=True)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Says on stderr what is being measured, and how long it took."""
    echo(f"{name} ...", err=True)
    began = time.perf_counter()
    yield
    echo(f"{name}: {time.perf_counter() - began:.1f} s", err=True)
