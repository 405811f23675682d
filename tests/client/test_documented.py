"""The programs of README.md and docs/training.md, as their reader runs them; and what importing the client loads."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.client.fleet import fleet

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    program
    for document in (ROOT / "README.md", ROOT / "docs" / "training.md")
    for program in re.findall(r"^```python\n(.*?)^```$", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
]
#: One after another, each with names of its own: what takes long is to import torch.
EACH = "for number, program in enumerate({programs!r}): exec(compile(program, f'program {{number}}', 'exec'), {{}})"


def run(program, cwd=None):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_programs_of_the_documents_run(tmp_path, tiny_policy, monkeypatch):
    assert PROGRAMS
    monkeypatch.setenv("ROSE_TOKEN", "token-of-the-tests")
    (tmp_path / "policy").symlink_to(tiny_policy)
    with fleet(tmp_path, token="token-of-the-tests") as there:
        here = [program.replace("http://127.0.0.1:30100", there.url) for program in PROGRAMS]
        printed = run(EACH.format(programs=here), cwd=tmp_path).splitlines()
        states = [run.facts.state for run in there.gateway.controller.runs]
    assert sum(line.startswith("ended") for line in printed) == len(PROGRAMS)
    assert states == ["closed"] * len(PROGRAMS)


def test_importing_the_client_loads_no_torch_ray_or_sglang():
    heavy = ("torch", "ray", "sglang", "aiohttp", "duckdb", "pyarrow")
    assert run(f"import sys, rose.client; print([name for name in {heavy} if name in sys.modules])") == "[]\n"
