from __future__ import annotations

import json

from rose.accept.report import Report, finish


def test_a_claim_that_is_not_reached_is_reported_like_any_other(tmp_path, capsys):
    report = Report("thing", quick=True)
    report.claim("latency", 3.0, "ms", 2, "lower")
    report.claim("rate", 3.0, "1/s", 2, "higher")
    finish(report, tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert [(claim["name"], claim["holds"]) for claim in written["claims"]] == [("latency", False), ("rate", True)]
    assert set(written) >= {"benchmark", "commit", "device", "provenance", "claims", "detail"}
    shown = capsys.readouterr().out
    assert "NO" in shown
    assert "latency" in shown


def test_a_run_that_measured_nothing_does_not_overwrite_an_earlier_one(tmp_path, capsys):
    file = tmp_path / "report.json"
    file.write_text("an earlier run")
    finish(Report("thing", quick=True), file)
    assert file.read_text() == "an earlier run"
    assert f"nothing was measured: {file} is left as it is" in capsys.readouterr().err
