from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from benchmarks.transfer import chain, made_up
from benchmarks.transfer.__main__ import PARTS, main, measure
from benchmarks.transfer.compare import compare, entropy_bits
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
        pause_rounds=0,
        cache=folder / "cache",
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("benchmark")
    report = Report("transfer", quick=True)
    (folder / "disk").mkdir()
    measure(report, folder / "disk", tiny(folder), list(PARTS))
    assert not list((folder / "disk").iterdir()), "what it wrote is removed"
    return report


@pytest.mark.long
def test_every_part_tells_its_detail_and_claims_what_it_should(report: Report) -> None:
    assert set(report.detail) == set(PARTS)
    pairs = {(claim.unit, claim.better) for claim in report.claims}
    assert pairs == {("x", "higher"), ("x", "lower"), ("GiB/s", "higher"), ("packages", "lower")}
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
    by_name = {claim.name: claim for claim in report.claims}
    assert by_name["packages to a new receiver, 3 versions after the anchor"].value <= 4


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_way_is_lossless(way: Way, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 300))
    base, new = (data.draw(arrays.arrays(np.uint16, size)) for _ in range(2))
    kept = data.draw(arrays.arrays(np.bool_, size))
    new[kept] = base[kept]
    held = base.copy()
    way.apply(held, way.encode(base, new))
    assert np.array_equal(held, new)


def test_every_way_is_lossless_over_several_blocks() -> None:
    base, new = made_up.pair((2 << 20) + 5, 0.03)
    assert compare(base, new).sent_bytes.keys() == {way.name for way in WAYS}


def test_a_way_that_loses_a_bit_is_found_out() -> None:
    base, new = made_up.pair(1000, 0.1)
    careless = Way("careless", lambda base, new: b"", lambda base, sent: None)
    with pytest.raises(AssertionError, match="careless is not lossless"):
        compare(base, new, [careless])


@pytest.mark.parametrize("share", SHARES)
def test_a_made_up_step_changes_the_share_it_should(share: float) -> None:
    made = made_up.versions(1 << 20, share)
    before = next(made)
    for after in (next(made), next(made)):
        assert np.mean(before != after) == pytest.approx(share, rel=0.05)
        before = after


def test_bf16_is_rounded_as_torch_rounds_it() -> None:
    import torch

    from rose.runtime.transfer.codec.bits import to_bits

    masters = np.random.default_rng(0).standard_normal(10_000, dtype=np.float32)
    expected = to_bits("masters", torch.from_numpy(masters).bfloat16())
    assert np.array_equal(made_up.bf16(masters), expected)


def test_the_entropy_of_a_step_is_that_of_each_exponent() -> None:
    one, half = 0x3F80, 0x3F00
    base = np.array([one] * 4 + [half] * 4, np.uint16)
    new = base + np.array([1, 1, 0, 0, 0, 0, 0, 0], np.uint16)
    # A bit for each of the first four, nothing for the others, which are all alike.
    assert entropy_bits(base, new) == pytest.approx(4)
    assert entropy_bits(base, base) == 0
    # A step of two is another one than a step of one.
    assert entropy_bits(base, base + np.array([1, 2, 0, 0, 0, 0, 0, 0], np.uint16)) == pytest.approx(6)


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
