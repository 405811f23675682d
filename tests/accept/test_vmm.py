"""The stage `vmm`: the same code on memory of the host, between two processes; the card's part is skipped here."""

from __future__ import annotations

import json

import pytest
import torch

from rose.accept import harness
from rose.accept.report import Report
from rose.accept.stage import STAGES, StageReport
from rose.accept.stages import vmm
from rose.accept.stages.vmm import Sizes
from rose.accept.stages.vmm_neighbour import Neighbour
from rose.runtime.coserving.kv.host_memory import HostMemory

SIZES = Sizes(moved=300, stays=4, piece_bytes=64 << 10, spare_bytes=0, rounds=2)


@pytest.fixture(scope="module")
def neighbours():
    with Neighbour("cpu", 60) as first, Neighbour("cpu", 60) as second:
        yield first, second


@pytest.fixture(scope="module")
def report(neighbours, tmp_path_factory):
    report = StageReport("vmm", True, file=tmp_path_factory.mktemp("stage") / "out.json")
    vmm._parts(report, SIZES, HostMemory(), *neighbours)
    return report


def test_memory_goes_there_and_back_under_work_that_goes_on(report):
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
    assert json.loads(report.file.read_text())["detail"]


def test_a_part_that_fails_is_named_and_the_others_run(neighbours, tmp_path):
    """The first neighbour is gone by now: it went with its part."""
    report = StageReport("vmm", True, file=tmp_path / "out.json")
    gone, alive = neighbours[0], neighbours[1]
    vmm._parts(report, SIZES, HostMemory(), gone, alive)
    assert set(report.facts["parts that failed"]) == {"neighbours", "fresh handles"}
    assert "vmm: kept handles, ms per GB" in {claim.name for claim in report.claims}
    assert not next(claim for claim in report.claims if claim.name == "vmm: parts that failed").holds


@pytest.mark.long
def test_what_goes_wrong_there_is_said_here(neighbours):
    with pytest.raises(RuntimeError, match="at 'give': AssertionError: nothing was taken"):
        neighbours[1].ask("give")
    assert neighbours[1].ask("ready") == {}


def test_there_is_no_more_taken_than_leaves_what_was_to_be_spared(neighbours):
    asked = {"pieces": 1, "piece_bytes": 64 << 10, "spare_bytes": 1 << 60}
    assert neighbours[1].ask("take", **asked)["taken_bytes"] == 0


def test_times_are_medians_over_decimal_gigabytes():
    assert vmm._ms_per_gb([1_000_000, 9_000_000, 2_000_000], SIZES) == 2 / (300 * (64 << 10) / 1e9)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_a_host_without_a_gpu_skips_it_with_the_reason():
    report, stage = Report("gpu", True), next(stage for stage in STAGES if stage.name == "vmm")
    ended = []
    harness.run([stage], report, gpu=None, keep=lambda _: None, say=ended.append)
    assert ended[0].skipped == "this host has no GPU that torch can use"
