import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from deploy import gpu_kit as kit
from rose.accept.report import ROOT

REQUIREMENTS = ROOT / "requirements"


def pins(name: str) -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (REQUIREMENTS / name).read_text().splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in pairs}


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, data in files.items():
            archive.writestr(inside, data)
    return path


@pytest.fixture
def wheels(tmp_path):
    return [
        wheel(
            tmp_path / "wheels",
            "sglang",
            {
                "sglang/srt/server.py": b"x = 1\n",
                "sglang/test/runners.py": b"x = 2\n",
                "sglang/multimodal_gen/deep/x.py": b"x = 3\n",
                "sglang/srt/rust_extensions/_server.abi3.so": b"kept",
                "sglang/srt/rust_extensions/_grpc.abi3.so": b"dropped",
                "sglang/srt/tests/test_x.py": b"x = 4\n",
                "sglang-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: sglang\nVersion: 1.0\n",
            },
        ),
        wheel(
            tmp_path / "wheels",
            "tool",
            {
                "tool-1.0.data/scripts/tool": b"#!/bin/sh\n",
                "tool-1.0.data/platlib/tool/__init__.py": b"",
                "tool-1.0.data/headers/tool.h": b"",
                "testing/__init__.py": b"",
            },
        ),
    ]


def test_every_line_of_the_list_is_a_pin_and_other_lists_have_its_versions():
    lines = [line for line in kit.REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    kit_pins = pins("gpu-native.txt")
    assert len(kit_pins) > 50
    for other in ("constraints-cpu.txt", "sglang-cpu.txt", "sglang-cpu-nodeps.txt"):
        shared = {name: version for name, version in pins(other).items() if name in kit_pins}
        assert shared == {name: kit_pins[name] for name in shared}, other


def test_parts_that_are_never_imported_are_left_out(wheels, tmp_path):
    site = tmp_path / "site"
    for path in wheels:
        kit.unpack(path, site)
    kit.drop(site)
    assert sorted(path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()) == [
        "bin/tool",
        "sglang-1.0.dist-info/METADATA",
        "sglang/srt/rust_extensions/_server.abi3.so",
        "sglang/srt/server.py",
        "testing/__init__.py",
        "tool/__init__.py",
    ]
    assert (site / "bin/tool").stat().st_mode & 0o111


def test_sglang_finds_the_plugin_of_a_kit(tmp_path):
    kit.describe_project(tmp_path)
    (folder,) = tmp_path.glob("*.dist-info")
    entry_points = Distribution.at(folder).entry_points
    (plugin,) = entry_points.select(group="sglang.srt.plugins")
    assert plugin.value == "rose.runtime.coserving.plugin:register"
    assert [script.name for script in entry_points.select(group="console_scripts")] == ["rose"]


#: Imports the modules that it is given where packages are absent.
IMPORT = """
import sys, importlib
absent, modules = (argument.split(",") for argument in sys.argv[1:])
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for module in modules:
    importlib.import_module(module)
"""


@pytest.mark.long
def test_a_kit_unpacks_and_its_modules_need_nothing_that_it_leaves_out(wheels, tmp_path, monkeypatch, capsys):
    """Ray, DuckDB, Polars and their like are not among its wheels, nor on a machine with torch alone."""
    absent = {"ray", "duckdb", "polars", "streamlit", "altair", "xlsxwriter", "datasets"}
    assert not absent & set(pins("gpu-native.txt"))
    out = tmp_path / "out"
    monkeypatch.setattr(kit, "LIMIT_BYTES", 1000)
    assert kit.main(["--wheels", str(wheels[0].parent), "--out", str(out)]) == 1, "too large"
    assert "MB at most" in capsys.readouterr().out
    with tarfile.open(out / "rose-gpu-kit.tar.xz") as archive:
        names = set(archive.getnames())
    assert {"site/sglang/srt/server.py", "project/rose/cli.py", "project/sample_traces/bursty.csv"} <= names
    assert "models/llama-8b/config.json" in names
    assert not any("__pycache__" in name or name.startswith("project/benchmarks/results") for name in names)
    environment = {"ROSE_KIT": str(tmp_path / "kit"), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    captured = {"capture_output": True, "text": True}
    run = subprocess.run(
        ["sh", str(out / "accept.sh"), "-m", "json.tool", "--help"], check=False, env=environment, **captured
    )
    assert run.returncode == 0, run.stderr
    project = tmp_path / "kit" / "project"
    assert (project / "COMMIT").exists()
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "rose/accept").rglob("*.py")]
    modules += ["benchmarks.coserve.__main__", "rose.runtime.coserving.plugin", "rose.cli"]
    command = [sys.executable, "-c", IMPORT, ",".join(absent), ",".join(sorted(modules))]
    run = subprocess.run(command, check=False, cwd=project, **captured)
    assert run.returncode == 0, run.stderr
