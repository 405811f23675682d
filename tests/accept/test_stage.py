import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from benchmarks.shared import finish
from rose.accept.report import ROOT, Report
from rose.accept.stage import STAGES, Stage, StageReport, run_stages
from rose.accept.stages import cuda_tests
from rose.cli import app
from rose.runtime.engines.adoption import is_ending

_SCRIPTS = {
    "good": "report.claim('good: one', 1, 'x', 2, 'lower')\n    report.fact('device', scope.device)",
    "fails": "report.claim('fails: before', 1, 'x', 2, 'lower')\n    raise ValueError('no luck')",
    "crashes": "os.kill(os.getpid(), signal.SIGSEGV)",
    "leaves": "print('last words')\n    os._exit(3)",
    "hangs": (
        "report.claim('hangs: before', 3, 'x', 2, 'lower')\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        "    (pathlib.Path(os.environ['MADE_PIDS'])).write_text(f'{os.getpid()} {child.pid}')\n"
        "    time.sleep(600)"
    ),
    "rubbish": "report.file.write_text('{not json')\n    print(chr(0) * 100)\n    os._exit(0)",
    "odd_claim": 'report.file.write_text(\'{"claims": [{"name": 1}], "facts": {}, "detail": {}, "skipped": null, '
    '"failed": null}\')\n    os._exit(0)',
    "timed": "report.fact('seconds', scope.seconds)",
    "skips": "raise SkippedError('no such device here')",
}


@pytest.fixture
def play(tmp_path, monkeypatch):
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

    def run(*names: str, seconds: float = 60.0) -> tuple[Report, list[StageReport]]:
        times = {"seconds": seconds, "quick_seconds": seconds, "package": "made_stages"}
        stages = [Stage(name=name, needs_gpu=name == "good_gpu", takes_rest=name == "timed", **times) for name in names]
        report, outcomes, rows = Report("gpu", quick=True), list[StageReport](), list[int]()

        def ended(outcome: StageReport) -> None:
            outcomes.append(outcome)
            rows.append(len(report.detail["stages"]))

        run_stages(stages, report, gpu=None, ended=ended)
        assert rows == list(range(1, len(names) + 1)), "the report has each stage as it ends"
        return report, outcomes

    return run


def test_every_outcome_of_a_stage_is_in_the_report_and_the_others_run(play):
    reasons = {
        "good": None,
        "fails": "ValueError: no luck",
        "crashes": "killed by signal SIGSEGV",
        "leaves": "exit code 3",
        "rubbish": "it left no report that can be read",
        "odd_claim": "it left no report that can be read",
        "not_there": "ModuleNotFoundError: No module named 'made_stages.not_there'",
    }
    report, outcomes = play(*reasons, "skips", "good_gpu")
    assert {one.benchmark: one.failed for one in outcomes[:-2]} == reasons
    assert {claim.name: claim.holds for claim in report.claims} == {"good: one": True, "fails: before": True} | {
        f"{name}: ran to its end": reason is None for name, reason in reasons.items()
    }
    rows = report.to_json()["detail"]["stages"]
    assert rows["good"]["facts"] == {"device": "cpu"}
    assert "no luck" in rows["fails"]["log"]
    assert "last words" in rows["leaves"]["log"]
    assert rows["skips"] == {"seconds": rows["skips"]["seconds"], "skipped": "no such device here"}
    assert outcomes[-1].skipped == "this host has no GPU that torch can use"


def test_a_stage_that_hangs_is_stopped_with_all_that_it_started_and_the_rest_goes_to_the_next(play, tmp_path):
    report, (good, skipped, hangs, timed) = play("good", "skips", "hangs", "timed", seconds=5.0)
    assert hangs.failed == "stopped after 5 s"
    assert {claim.name: claim.holds for claim in report.claims}["hangs: before"] is False
    assert skipped.skipped
    assert timed.facts["seconds"] == pytest.approx(max(0.0, 10.0 - good.took_s - hangs.took_s) + 5.0, abs=1e-3)
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        deadline = time.monotonic() + 10
        while not is_ending(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert is_ending(pid)


def test_the_stages_fit_into_twenty_minutes_and_two_minutes_without_a_gpu():
    assert sum(stage.seconds for stage in STAGES) <= 1200
    assert sum(stage.seconds for stage in STAGES if stage.name not in ("beside", "busy_engines")) <= 480
    assert sum(stage.quick_seconds for stage in STAGES if not stage.needs_gpu) <= 145


def test_rose_accept_writes_its_report_and_says_what_is_skipped(tmp_path):
    file = tmp_path / "a.json"
    done = CliRunner().invoke(app, ["accept", "--quick", "--only", "host", "--only", "vmm", "--json", str(file)])
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert report["benchmark"] == "gpu"
    stages = report["detail"]["stages"]
    assert stages["host"]["facts"]["cores"] == len(os.sched_getaffinity(0))
    assert "skipped" not in stages["vmm"] or "vmm: skipped: this host has no GPU that torch can use" in done.output


def test_bad_options_are_one_line():
    for option, value, message in (
        ("--only", "gates", "unknown stage 'gates'"),
        ("--gpu", "77", "GPU 77"),
        ("--json", "/nowhere/report.json", "--json: /nowhere/report.json cannot be written"),
    ):
        done = CliRunner().invoke(app, ["accept", option, value])
        assert (done.exit_code, message in done.output) == (2, True)


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
    for line in process.stderr:
        if line.startswith("host: done"):
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stderr.close()
    assert list(json.loads(file.read_text())["detail"]["stages"]) == ["host"]
    assert subprocess.run(["pgrep", "-f", str(file.parent)], capture_output=True, text=True, check=False).stdout == ""


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
    failed = ["a::bad: it is 3", "a::broken: no fixture"]
    assert cuda_tests.outcomes(file) == (1, ["a::left: two cards are needed"], failed)


def test_a_claim_that_is_not_reached_is_reported_like_any_other(tmp_path, capsys):
    report, file = Report("thing", quick=True), tmp_path / "report.json"
    report.claim("latency", 3.0, "ms", 2, "lower")
    report.claim("rate", 3.0, "1/s", 2, "higher")
    finish(report, file)
    kept = file.read_text()
    written = json.loads(kept)
    assert [(claim["name"], claim["holds"]) for claim in written["claims"]] == [("latency", False), ("rate", True)]
    assert set(written) >= {"benchmark", "commit", "device", "provenance", "claims", "detail"}
    assert {"NO", "latency"} <= set(capsys.readouterr().out.split())
    finish(Report("thing", quick=True), file)
    assert file.read_text() == kept, "a run that measured nothing leaves an earlier report alone"
