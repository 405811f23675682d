import pytest

from rose.accept.stage import StageReport
from rose.accept.stages import vmm
from rose.accept.stages.vmm import Neighbour
from rose.runtime.coserving.kv.host_memory import HostMemory

SIZES = vmm.Sizes(moved=300, stays=4, piece_bytes=64 << 10, spare_bytes=0, rounds=2)


@pytest.mark.long
def test_memory_goes_there_and_back_and_a_part_that_fails_is_named(tmp_path):
    report = StageReport("vmm", True, file=tmp_path / "out.json")
    with Neighbour("cpu", 60) as first, Neighbour("cpu", 60) as second:
        vmm.run_parts(report, SIZES, HostMemory(), first, second)
        again = StageReport("vmm", True, file=tmp_path / "again.json")
        # The first neighbour went with its part.
        vmm.run_parts(again, SIZES, HostMemory(), first, second)
        with pytest.raises(RuntimeError, match="at 'give': AssertionError: nothing was taken"):
            second.ask("give")
        assert second.ask("take", pieces=1, piece_bytes=64 << 10, spare_bytes=1 << 60) == 0
    claims = {claim.name: claim for claim in report.claims}
    assert report.facts["parts that failed"] == {}
    for name in (
        "bytes moved to the other process / asked",
        "addresses stable under replay",
        "replays wrong after a move",
        "pieces wrong after they were handed over",
        "parts that failed",
    ):
        assert claims[f"vmm: {name}"].holds, claims[f"vmm: {name}"]
    assert {"vmm: fresh handles, ms per GB", "vmm: kept handles, ms per GB"} < set(claims)
    assert report.facts["replays"] == 1 + 2 * SIZES.rounds
    assert set(again.facts["parts that failed"]) == {"neighbours", "fresh handles"}
    assert {claim.name for claim in again.claims} >= {"vmm: kept handles, ms per GB", "vmm: parts that failed"}
    assert vmm.ms_per_gb([1_000_000, 9_000_000, 2_000_000], SIZES) == 2 / (300 * (64 << 10) / 1e9)
