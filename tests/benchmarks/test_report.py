from __future__ import annotations

import json

from benchmarks.report import Report, finish


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
