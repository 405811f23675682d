"""The stage as the harness runs it, on CPU cores: the code is that of a GPU, at a smaller size."""

from __future__ import annotations

import dataclasses

import pytest

from rose.accept import harness
from rose.accept.report import Report
from rose.accept.stage import STAGES
from rose.accept.stages.weights import SHARES


@pytest.mark.long
def test_what_is_promised_of_new_weights_holds_on_cpu_cores() -> None:
    report, ended = Report("gpu", quick=True), []
    (stage,) = (stage for stage in STAGES if stage.name == "weights")
    # On a busy host it takes what it takes.
    harness.run(
        [dataclasses.replace(stage, quick_seconds=150)], report, gpu=None, keep=lambda _: None, say=ended.append
    )
    assert ended[0].failed is None, ended[0]
    claims = {claim.name: claim for claim in report.claims}
    assert all(claim.holds for claim in claims.values()), claims
    assert claims.keys() == {
        "weights: parameters that moved",
        "weights: graph replays that saw the new weights",
        "weights: wrong tensors",
        "weights: flipped bit found",
        "weights: ran to its end",
    }
    rows = report.detail["stages"]["weights"]["detail"]["versions"]
    facts = report.detail["stages"]["weights"]["facts"]
    assert facts["versions brought in"] == len(rows) > 0
    assert facts["steps are"] == "computed as they are"
    assert facts["steps since the first version"] > 0
    assert {"all weights by fingerprints, s", "all weights by reading all back, s"} <= facts.keys()
    for share in SHARES[: len(rows)]:
        row = rows[f"{share:.1%}"]
        assert abs(row["changed_share"] / share - 1) < 0.1
        assert row["write_bytes"] > 0
