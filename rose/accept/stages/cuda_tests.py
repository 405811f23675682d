"""The project's own tests that need CUDA."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from rose.accept.report import ROOT
from rose.accept.stage import Scope, SkippedError, StageReport

_TESTS = ROOT / "tests" / "runtime"
_PASSED_MIN = 10


def measure(scope: Scope, report: StageReport) -> None:
    if not _TESTS.is_dir():
        raise SkippedError("the tests are missing: run this from a checkout, or from the output of `make gpu-kit`")
    if importlib.util.find_spec("pytest") is None:
        raise SkippedError("pytest is not installed: `pip install pytest pytest-timeout hypothesis`")
    file = scope.folder / "tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda and not live"]
    if importlib.util.find_spec("xdist") is not None:
        command += ["--numprocesses=4", "--dist=loadfile"]
    visible = {} if scope.gpu is None else {"CUDA_VISIBLE_DEVICES": str(scope.gpu)}
    # Pytest imports a file before it reads its marks: give it only files with this mark.
    tests = [str(path) for path in sorted(_TESTS.rglob("test_*.py")) if "mark.cuda" in path.read_text()]
    subprocess.run([*command, f"--junit-xml={file}", *tests], cwd=ROOT, env={**os.environ, **visible}, check=False)
    passed, report.detail["skipped"], report.detail["failed"] = outcomes(file)
    report.claim("cuda_tests: failed", len(report.detail["failed"]), "tests", 0, "lower")
    report.claim("cuda_tests: passed", passed, "tests", _PASSED_MIN, "higher")


def outcomes(file: Path) -> tuple[int, list[str], list[str]]:
    """Return (number of passed tests, skipped tests with reasons, failed tests with reasons)."""
    passed, skipped, failed = 0, [], []
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
        problems = [part for tag in ("failure", "error") for part in case.findall(tag)]
        if problems:
            failed.append(f"{name}: {problems[0].get('message', '')[:500]}")
        elif (reason := case.find("skipped")) is not None:
            skipped.append(f"{name}: {reason.get('message', '')}")
        else:
            passed += 1
    return passed, skipped, failed
