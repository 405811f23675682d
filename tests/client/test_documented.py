"""The programs of README.md and docs/training.md, as their reader runs them; and what importing the client loads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.fleet import fleet

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    program
    for document in (ROOT / "README.md", ROOT / "docs" / "training.md")
    for program in re.findall(r"^```python\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_document_runs(tmp_path, program):
    with fleet(tmp_path, token="change-me") as there:
        assert "ended" in run(program.replace("http://127.0.0.1:30100", there.url))
        states = {run.facts.state for run in there.gateway.controller.runs}
    assert states == {"closed"}


def test_importing_the_client_loads_no_torch_ray_or_sglang():
    heavy = ("torch", "ray", "sglang", "aiohttp", "duckdb", "pyarrow")
    assert run(f"import sys, rose.client; print([name for name in {heavy} if name in sys.modules])") == "[]\n"
