import pytest

from rose.accept.stage import Scope, StageReport
from rose.accept.stages import weights


@pytest.mark.long
def test_what_is_promised_of_new_weights_holds_on_cpu_cores(tmp_path) -> None:
    report = StageReport("weights", True, file=tmp_path / "out.json")
    weights.measure(Scope(gpu=None, quick=True, seconds=150, folder=tmp_path), report)
    claims = {claim.name: claim for claim in report.claims}
    assert all(claim.holds for claim in claims.values()), claims
    assert claims.keys() == {
        "weights: graph replays that saw the new weights",
        "weights: wrong tensors",
        "weights: flipped bit found",
    }
    rows = report.detail["versions"]
    assert report.facts["versions brought in"] == len(rows) > 0
    assert report.facts["steps since the first version"] > 0
    for share in weights.SHARES[: len(rows)]:
        assert abs(rows[f"{share:.1%}"]["changed_share"] / share - 1) < 0.1
