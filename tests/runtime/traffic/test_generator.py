from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rose.runtime.traffic.generator import Shape, generate
from rose.runtime.traffic.trace import read

ROOT = Path(__file__).parents[3]
SHIPPED = ROOT / "sample_traces" / "bursty.csv"


def test_the_shipped_trace_is_what_the_documented_command_makes(tmp_path: Path) -> None:
    readme = (ROOT / "sample_traces" / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^    python (-m rose\.runtime\.traffic\.generator .*)$", readme, re.MULTILINE)
    assert command is not None
    out = tmp_path / "again.csv"
    arguments = command[1].replace("sample_traces/bursty.csv", str(out)).split()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    assert out.read_bytes() == SHIPPED.read_bytes()


def test_the_readme_tells_the_truth_about_the_shipped_trace() -> None:
    readme = (ROOT / "sample_traces" / "README.md").read_text(encoding="utf-8")
    trace = read(SHIPPED)
    seconds = trace.arrival_ns / 1e9
    gaps = np.diff(seconds)
    per_s, per_10s = np.bincount(seconds.astype(int)), np.bincount((seconds // 10).astype(int))
    for figure in (
        f"{len(trace):,} requests",
        f"mean is {len(trace) / seconds[-1]:.2f} requests a second",
        f"busiest second has {per_s.max()}",
        f"{per_10s.max() / per_10s.mean():.1f} times the mean",
        f"the gaps is {gaps.var() / gaps.mean() ** 2:.1f} ",
    ):
        assert figure in " ".join(readme.split())


def test_another_seed_gives_another_trace_of_the_same_kind(tmp_path: Path) -> None:
    assert generate(1, 5) == generate(1, 5) != generate(2, 5)
    path = tmp_path / "long.csv"
    path.write_text(generate(3, 600), encoding="utf-8")
    trace = read(path)
    shape = Shape()
    assert len(trace) / 36_000 == pytest.approx(shape.requests_per_s, rel=0.1)
    assert np.median(trace.prompt_tokens) == pytest.approx(shape.prompt.median, rel=0.05)
    assert np.log(trace.output_tokens).std() == pytest.approx(shape.output.sigma, rel=0.05)
    assert trace.prompt_tokens.max() <= shape.prompt.tokens_max
    gaps = np.diff(trace.arrival_ns)
    assert gaps.var() / gaps.mean() ** 2 > 1.4, "bursty: a Poisson process of one rate has 1"
