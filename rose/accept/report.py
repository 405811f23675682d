"""The report of a benchmark or an acceptance run: claims with targets, and the details behind them."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from rose.runtime.coserving.meter import meter_gpu
from rose.terminal import Screen, echo

ROOT = Path(__file__).parents[2]
COMMIT = "COMMIT"  # A copy of the checkout names its commit in this file.


@dataclass(frozen=True, slots=True)
class Claim:
    name: str
    value: float
    unit: str
    target: float
    better: Literal["lower", "higher"]

    @property
    def holds(self) -> bool:
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


@dataclass(slots=True)
class Report:
    benchmark: str
    quick: bool
    provenance: Literal["live", "simulated"] = "live"
    claims: list[Claim] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)

    def claim(self, name: str, value: float, unit: str, target: float, better: Literal["lower", "higher"]) -> None:
        self.claims.append(Claim(name, value, unit, target, better))

    def show(self) -> None:
        table = Table(title=f"{self.benchmark} on {device()}{' (quick: no claim about tails)' if self.quick else ''}")
        for column in ("claim", "measured", "unit", "target", "holds"):
            table.add_column(column, justify="right" if column in ("measured", "target") else "left")
        for claim in self.claims:
            target = f"{'≤' if claim.better == 'lower' else '≥'} {claim.target:,g}"
            table.add_row(claim.name, f"{claim.value:,.4g}", claim.unit, target, "yes" if claim.holds else "NO")
        Screen(width=140).print(table)

    def text(self) -> str:
        return json.dumps(self.to_json(), indent=1) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "commit": commit(),
            "device": device(),
            "quick": self.quick,
            "provenance": self.provenance,
            "claims": claims_json(self.claims),
            "detail": self.detail,
        }


def claims_json(claims: list[Claim]) -> list[dict[str, Any]]:
    return [asdict(claim) | {"holds": claim.holds} for claim in claims]


def device() -> str:
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cards = [name for name, _ in meter_gpu.survey()[0]]
    return ", ".join([*cards, model, f"{len(os.sched_getaffinity(0))} cores", f"{memory_gib:.0f} GiB"])


def commit() -> str:
    """Return the commit of this checkout, with `+` if there are local changes, or "" if it is unknown."""
    if (ROOT / COMMIT).is_file():
        return (ROOT / COMMIT).read_text().strip()
    try:
        described = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
        return subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextmanager
def phase(name: str) -> Iterator[None]:
    echo(f"{name} ...", err=True)
    began_s = time.perf_counter()
    yield
    echo(f"{name}: {time.perf_counter() - began_s:.1f} s", err=True)
