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


def test_the_programs_of_the_documents_run(tmp_path, tiny_policy, monkeypatch, capsys):
    assert PROGRAMS
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROSE_TOKEN", "token-of-the-tests")
    (tmp_path / "policy").symlink_to(tiny_policy)
    with fleet(tmp_path, token="token-of-the-tests") as service:
        for program in PROGRAMS:
            exec(program.replace("http://127.0.0.1:30100", service.url), {})
        printed = capsys.readouterr().out.splitlines()
        states = [run.facts.state for run in service.gateway.controller.runs]
    assert sum(line.startswith("ended") for line in printed) == len(PROGRAMS)
    assert states == ["closed"] * len(PROGRAMS)


def test_importing_the_client_loads_no_torch_ray_or_sglang():
    heavy = ("torch", "ray", "sglang", "aiohttp", "duckdb", "pyarrow", "transformers")
    program = f"import sys, rose.client; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
