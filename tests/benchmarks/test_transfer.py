from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.transfer import chain, made_up
from benchmarks.transfer.__main__ import PARTS, main, measure
from benchmarks.transfer.compare import compare
from benchmarks.transfer.scope import ORDINARY_SHARES, SHARES, Scope
from benchmarks.transfer.ways import WAYS, Way
from rose.accept.report import Report
from rose.config import TaskConfig
from rose.runtime.training.warm_start import WarmStart


def tiny(folder: Path) -> Scope:
    task = TaskConfig(size=3, turns_max=6)
    # Just enough that some games are won and some are not.
    start = WarmStart(task=task, episodes=160, learning_rate=3e-3, shape={"num_hidden_layers": 1})
    return Scope(
        sizes_elements=1 << 16,
        speed_elements=1 << 16,
        speed_rounds=1,
        chain_steps=2,
        chain_groups=4,
        chain_start=start,
        link_elements=1 << 16,
        link_rounds=1,
        join_elements=1 << 12,
        join_distances=(2, 4),
        shards_ranks=(1, 2),
        shards_width=64,
        shards_vocabulary=200,
        pause_rounds=0,
        cache=folder / "cache",
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("benchmark")
    report = Report("transfer", quick=True)
    (folder / "disk").mkdir()
    measure(report, folder / "disk", tiny(folder))
    assert not list((folder / "disk").iterdir()), "what it wrote is removed"
    return report


def test_every_part_tells_its_detail_and_claims_what_it_should(report: Report) -> None:
    assert set(report.detail) == set(PARTS)
    pairs = {(claim.unit, claim.better) for claim in report.claims}
    assert pairs == {("x", "higher"), ("x", "lower"), ("GiB/s", "higher"), ("packages", "lower"), ("tensors", "lower")}
    for share in SHARES:
        assert report.detail["sizes"]["shares"][f"{share:.0%}"]["ways"].keys() == {way.name for way in WAYS}
    for link in ("1 Gbit/s", "100 Mbit/s"):
        for share in ORDINARY_SHARES:
            for way, target in (("XOR + zstd-1", 2), ("dense copy", 8)):
                (claim,) = (
                    c
                    for c in report.claims
                    if c.name == f"publish to apply at {link}, {share:.0%} changed, against {way}"
                )
                assert (claim.target, claim.better) == (target, "higher")
    for name in chain.RATES:
        assert report.detail["chain"][name]["steps"] == 2
        assert 0 < report.detail["chain"][name]["changed_share"]["max"] <= 1
    assert len(report.detail["shards"]["worst_rank_against_a_delta_of_its_own"]) == 4
    by_name = {claim.name: claim for claim in report.claims}
    assert by_name["tensors that are not bit-exact, 4 pairs of FSDP(n) -> TP(m)"].value == 0
    assert by_name["packages to a new receiver, 3 versions after the anchor"].value <= 4


def test_every_way_is_lossless_over_several_blocks() -> None:
    base, new = made_up.pair((2 << 20) + 5, 0.03)
    assert compare(base, new).sent_bytes.keys() == {way.name for way in WAYS}


def test_a_way_that_loses_a_bit_is_found_out() -> None:
    base, new = made_up.pair(1000, 0.1)
    careless = Way("careless", lambda base, new: b"", lambda base, sent: None)
    with pytest.raises(AssertionError, match="careless is not lossless"):
        compare(base, new, [careless])


def test_a_made_up_step_changes_the_share_it_should() -> None:
    share = SHARES[1]
    made = made_up.versions(1 << 20, share)
    before = next(made)
    for after in (next(made), next(made)):
        assert np.mean(before != after) == pytest.approx(share, rel=0.05)
        before = after


def test_the_command_writes_its_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--quick", "--only", "sizes", "--only", "pause"]
    monkeypatch.setattr(
        "sys.argv", ["benchmarks.transfer", *given, "--folder", str(tmp_path), "--json", str(tmp_path / "report.json")]
    )
    main()
    assert "skipped by --quick" in capsys.readouterr().err
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["quick"], report["provenance"]) == (True, "simulated")
    units = {claim["name"]: claim["unit"] for claim in report["claims"]}
    assert units["bytes of XOR + zstd-1 against ours, 3% changed"] == "x"
    assert set(report["detail"]["sizes"]["shares"]["3%"]["ways"]) == {way.name for way in WAYS}
    assert not list(tmp_path.glob("transfer-benchmark-*")), "it leaves nothing but its report"
