import pytest

from rose.accept.stage import StageReport
from rose.accept.stages import vmm
from rose.accept.stages.vmm import Neighbour
from rose.runtime.coserving.kv.host_memory import HostMemory

SIZES = vmm.Sizes(moved=300, stays=4, piece_bytes=64 << 10, spare_bytes=0, rounds=2)


@pytest.mark.long
def test_memory_goes_there_and_back(tmp_path):
    report = StageReport("vmm", True, file=tmp_path / "out.json")
    with Neighbour("cpu", 60) as neighbour:
        vmm.move(report, SIZES, HostMemory(), neighbour)
        with pytest.raises(RuntimeError, match="at 'give': AssertionError: nothing was taken"):
            neighbour.ask("give")
        assert neighbour.ask("take", pieces=1, piece_bytes=64 << 10, spare_bytes=1 << 60) == 0
    claims = {claim.name: claim for claim in report.claims}
    for name in (
        "bytes moved to the other process / asked",
        "addresses stable under replay",
        "replays wrong after a move",
    ):
        assert claims[f"vmm: {name}"].holds, claims[f"vmm: {name}"]
    assert "vmm: fresh handles, ms per GB" in claims
    assert report.facts["replays"] == 1 + 2 * SIZES.rounds
    assert vmm.ms_per_gb([1_000_000, 9_000_000, 2_000_000], SIZES) == 2 / (300 * (64 << 10) / 1e9)
