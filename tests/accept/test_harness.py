"""The acceptance kit's harness, with stages that hang, crash and write nonsense; and the command on this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rose.accept import harness
from rose.accept.harness import Ended
from rose.accept.report import ROOT, Report
from rose.accept.stage import STAGES, Stage
from rose.accept.stages import cuda_tests

_SCRIPTS = {
    "good": "report.claim('good: one', 1, 'x', 2, 'lower')\n    report.fact('device', scope.device)",
    "fails": "report.claim('fails: before', 1, 'x', 2, 'lower')\n    raise ValueError('no luck')",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "leaves": "print('what it had to say')\n    os._exit(3)",
    "hangs": (
        "report.claim('hangs: before', 3, 'x', 2, 'lower')\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    (pathlib.Path(os.environ['MADE_PIDS'])).write_text(f'{os.getpid()} {child.pid}')\n"
        "    time.sleep(600)"
    ),
    "rubbish": "report.file.write_text('{not json')\n    print(chr(0) * 100)\n    os._exit(0)",
    "nonsense": "report.file.write_text('[1, 2]')\n    os._exit(0)",
    "odd_claim": 'report.file.write_text(\'{"claims": [{"name": 1}], "facts": {}, "detail": {}, "skipped": null, '
    '"failed": null}\')\n    os._exit(0)',
    "timed": "report.fact('seconds', scope.seconds)",
    "skips": "raise SkippedError('there is no such thing here')",
}


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Run made-up stages; returns the report, and how each stage ended."""
    package = tmp_path / "made_stages"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, body in _SCRIPTS.items():
        (package / f"{name}.py").write_text(
            "import os, pathlib, signal, subprocess, time\n"
            "from rose.accept.stage import SkippedError\n\n\n"
            f"def measure(scope, report):\n    {body}\n"
        )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MADE_PIDS", str(tmp_path / "pids"))

    def run(
        *names: str, seconds: float = 60.0, needs_gpu: bool = False, takes_rest: Sequence[str] = ()
    ) -> tuple[Report, list[Ended], list[int]]:
        stages = [
            Stage(
                name=name,
                about="",
                seconds=seconds,
                quick_seconds=seconds,
                needs_gpu=needs_gpu,
                takes_rest=name in takes_rest,
            )
            for name in names
        ]
        report, endings, kept = Report("gpu", quick=True), [], []
        harness.run(
            stages,
            report,
            gpu=None,
            keep=lambda so_far: kept.append(len(so_far.to_json()["detail"]["stages"])),
            say=endings.append,
            package="made_stages",
        )
        return report, endings, kept

    return run


def claims(report: Report) -> dict[str, bool]:
    return {claim.name: claim.holds for claim in report.claims}


def test_a_good_stage_has_its_claims_and_facts_in_the_report(play):
    report, (ended,), _ = play("good")
    assert claims(report) == {"good: one": True, "good: ran to its end": True}
    assert ended.facts == {"device": "cpu"}
    assert (ended.failed, ended.skipped) == (None, None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fails", "ValueError: no luck"),
        ("crashes", "it was killed by signal SIGSEGV"),
        ("leaves", "it ended with exit code 3"),
        ("rubbish", "it left nothing that can be read"),
        ("nonsense", "it left nothing that can be read"),
        ("odd_claim", "it left nothing that can be read"),
        ("not_there", "ModuleNotFoundError: No module named 'made_stages.not_there'"),
    ],
)
def test_a_stage_that_goes_wrong_is_a_claim_that_does_not_hold_and_the_next_one_runs(play, name, reason):
    report, (wrong, after), kept = play(name, "good")
    assert wrong.failed == reason
    assert claims(report)[f"{name}: ran to its end"] is False
    assert claims(report)["good: one"] is True
    assert report.to_json()["detail"]["stages"][name]["failed"] == reason
    assert after.failed is None
    assert kept == [1, 2], "the report is kept after every stage"


def test_what_a_stage_had_before_it_failed_is_kept_with_the_end_of_its_log(play):
    report, (fails, leaves), _ = play("fails", "leaves")
    assert claims(report)["fails: before"] is True
    assert "no luck" in fails.log
    assert "what it had to say" in report.to_json()["detail"]["stages"]["leaves"]["log"]
    assert leaves.claims == []


@pytest.mark.long
def test_a_stage_that_hangs_is_stopped_with_all_that_it_started(play, tmp_path):
    report, (ended, _), _ = play("hangs", "good", seconds=8.0)
    assert ended.failed == "it was not done after 8 s and was stopped"
    assert claims(report) == {
        "hangs: before": False,
        "hangs: ran to its end": False,
        "good: one": True,
        "good: ran to its end": True,
    }
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        deadline = time.monotonic() + 10
        while _runs(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _runs(pid)


def test_a_stage_has_what_those_before_it_left_of_their_time_where_it_takes_that(play):
    _, (before, skipped, timed), _ = play("good", "skips", "timed", seconds=30.0, takes_rest=["timed"])
    assert skipped.skipped
    assert timed.facts["seconds"] == pytest.approx(60.0 - before.took_s, abs=1e-3)
    _, (_, timed), _ = play("good", "timed", seconds=30.0)
    assert timed.facts["seconds"] == 30.0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_skipped_has_its_reason_and_no_claim(play):
    report, (ended,), _ = play("skips")
    assert ended.skipped == "there is no such thing here"
    assert report.claims == []
    report, (ended,), _ = play("good", needs_gpu=True)
    assert ended.skipped == "this host has no GPU that torch can use"
    assert report.claims == []


def test_the_stages_fit_into_eight_minutes_and_a_minute_without_a_gpu():
    assert sum(stage.seconds for stage in STAGES) <= 480
    assert sum(stage.quick_seconds for stage in STAGES if not stage.needs_gpu) <= 70
    for stage in STAGES:
        assert (ROOT / "rose" / "accept" / "stages" / f"{stage.name}.py").is_file(), stage.name


def _accept(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rose.cli", "accept", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_rose_accept_writes_its_report_and_says_what_is_skipped(tmp_path):
    done = _accept("--quick", "--only", "host", "--only", "vmm", "--json", str(tmp_path / "a.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["benchmark"] == "gpu"
    stages = report["detail"]["stages"]
    assert stages["host"]["facts"]["cores"] == len(os.sched_getaffinity(0))
    if report["detail"]["stages"]["vmm"].get("skipped"):
        assert "vmm: skipped: this host has no GPU that torch can use" in done.stderr


@pytest.mark.long
def test_no_time_is_missing_between_readings_of_power(tmp_path):
    done = _accept("--quick", "--only", "power", "--json", str(tmp_path / "a.json"))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "a.json").read_text())
    assert {claim["name"]: claim["value"] for claim in report["claims"]}["power: time between readings"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "gates"), "stage 'gates' is none of host, ceilings,"),
        (("--gpu", "77"), "GPU 77 is not there"),
        (("--json", "/nowhere/report.json"), "/nowhere/report.json cannot be written: /nowhere is no folder"),
    ],
)
def test_bad_options_are_one_line(arguments, message):
    done = _accept(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_an_interrupted_run_keeps_what_it_has_and_leaves_nothing_running(tmp_path):
    file = tmp_path / "a.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "rose.cli", "accept", "--only", "host", "--only", "power", "--json", str(file)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("host: done"):
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stderr.close()
    assert list(json.loads(file.read_text())["detail"]["stages"]) == ["host"]
    runners = subprocess.run(["pgrep", "-f", str(file.parent)], capture_output=True, text=True, check=False)
    assert runners.stdout == ""


def test_outcomes_of_tests_are_read_from_their_report(tmp_path):
    file = tmp_path / "tests.xml"
    file.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.a" name="good"/>'
        '<testcase classname="tests.a" name="bad"><failure message="it is 3">...</failure></testcase>'
        '<testcase classname="tests.a" name="broken"><error message="no fixture"/></testcase>'
        '<testcase classname="tests.a" name="left"><skipped message="two cards are needed"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert cuda_tests.outcomes(file) == (
        1,
        ["a::left: two cards are needed"],
        ["a::bad: it is 3", "a::broken: no fixture"],
    )
