from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from rose.accept.gate import figures
from rose.accept.gate.device import Device, PartyError
from rose.accept.gate.layers import LayerEnds, Stack
from rose.accept.gate.messages import Arrival, RolledOut, Round, Step, Yield
from rose.accept.gate.parties import WatchedPage
from rose.accept.report import ROOT
from rose.clock import Anchor, monotonic_ns
from rose.events import DeviceSlice
from rose.runtime.coserving.hooks.gate import layers_of
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.policy.slack import Hold

MS = 1_000_000
ANCHOR = Anchor(1_000)
CPU = torch.device("cpu")


@pytest.mark.long
def test_the_stage_claims_that_spans_add_up_and_that_a_step_gave_way(tmp_path):
    file = tmp_path / "report.json"
    command = [sys.executable, "-m", "rose.cli", "accept", "--quick", "--only", "gate", "--json", str(file)]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=120)
    report = json.loads(file.read_text())
    stage = report["detail"]["stages"]["gate"]
    claims = {claim["name"]: claim["value"] for claim in report["claims"]}
    assert claims.keys() == {
        "gate: slice sum error",
        "gate: layers left on the device at a yield",
        "gate: rollout steps, gated / ungated of the idle share",
        "gate: ran to its end",
    }, stage
    assert claims["gate: slice sum error"] == 0
    assert claims["gate: ran to its end"] == 1
    part = stage["detail"]["gate"]
    assert {"alone", "rollouts alone", "ungated", "yield"} <= part["modes"].keys()
    assert part["account"]["spans_lost"] == 0
    assert part["modes"]["yield"]["serving_steps"] > 0
    assert part["modes"]["yield"]["requests_ended"] == 0, "no turn was sent elsewhere"
    assert part["modes"]["alone"].keys().isdisjoint({"rollout_steps"}), "no rollout process was at work"


def test_arrivals_are_those_of_their_seed_and_keep_serving_busy_for_two_fifths():
    coming = figures.arrivals(7, 10 * MS, 0, 400_000 * MS)
    assert coming == figures.arrivals(7, 10 * MS, 0, 400_000 * MS) != figures.arrivals(8, 10 * MS, 0, 400_000 * MS)
    assert sum(arrival.steps for arrival in coming) * 10 / 400_000 == pytest.approx(0.4, abs=0.02)
    ends = [arrival.at_ns + arrival.steps * 10 * MS for arrival in coming]
    assert all(later.at_ns >= end for later, end in zip(coming[1:], ends, strict=False)), "alone, none waits"
    shorter = figures.arrivals(7, 10 * MS, 0, 4_000 * MS)
    assert shorter == coming[: len(shorter)], "a shorter round has the same requests, but fewer"
    assert isinstance(coming[0], Arrival)


def one_round(*steps: Step, rollout: RolledOut | None = None) -> Round:
    return Round(mode="yield", from_ns=0, until_ns=1000 * MS, steps=steps, rollout=rollout)


def test_latency_counts_from_when_a_step_was_due_and_business_from_its_begin():
    steps = [Step(index * 10 * MS, index * 10 * MS + 2 * MS, index * 10 * MS + 6 * MS) for index in range(100)]
    assert figures.latency_ms(steps, 0.5) == 6
    late = [*steps[:-1], Step(990 * MS, 1000 * MS, 1010 * MS)]
    assert figures.latency_ms(late, 1.0) == 20
    assert figures.busy_share(steps, 0, 1000 * MS) == pytest.approx(0.4)
    assert figures.busy_share([Step(0, 900 * MS, 1100 * MS)], 0, 1000 * MS) == pytest.approx(0.1), "clipped"


def test_figures_of_a_mode_are_of_all_of_its_rounds():
    first = RolledOut(steps=10, yields=(Yield(1, 0, 2, 3 * MS),), taken=0, abandoned=0, ended=0)
    second = RolledOut(steps=30, yields=(Yield(0, 0, 1, MS), Yield(2, 0, 2, 2 * MS)), taken=4, abandoned=1, ended=0)
    due = figures.SETTLING_NS
    step, early = Step(due, due, due + 100 * MS), Step(due - 1, due - 1, due - 1)
    part = figures.mode_figures([one_round(step, rollout=first), one_round(early, step, step, rollout=second)], [])
    assert (part["seconds"], part["serving_steps"], part["rollout_steps_per_s"]) == (2, 3, 20)
    assert part["busy_share"] == pytest.approx(0.15)
    assert (part["yields"], part["yields_by_kernel"], part["steps_given_up"]) == (3, 4, 1)
    assert (part["layers_on_device_at_yield_max"], part["wish_to_free_p50_ms"]) == (2, 2)
    assert part["device_time"] == {}
    alone = figures.mode_figures([one_round()], [])
    assert alone["latency_p99_ms"] is None
    assert "rollout_steps" not in alone


def test_what_rollouts_waited_for_is_told_by_reason_and_within_the_rounds():
    spans = [
        SpanRecord(Span.HELD, -5 * MS, 5 * MS, Hold.REGRET),
        SpanRecord(Span.HELD, 10 * MS, 12 * MS, Hold.SERVING_STEP),
        SpanRecord(Span.HELD, 20 * MS, 21 * MS, Hold.SERVING_STEP),
        SpanRecord(Span.YIELD, 990 * MS, 1010 * MS),
        SpanRecord(Span.SERVING, 0, 1000 * MS),
    ]
    assert figures.waited_ms([one_round()], spans) == {"regret": 5, "serving_step": 3, "yield": 10}


def test_steps_that_nothing_can_be_compared_with_reach_no_target():
    assert figures.ratio(70, 200 * (1 - 0.5)) == pytest.approx(0.7)
    assert figures.ratio(0, 0) == 0


def test_layers_that_were_not_seen_to_be_bounded_are_all_of_a_step_s():
    assert figures.layers_left([Yield(1, 0, 2, 0), Yield(2, 1, 2, 0)], 32) == 2
    assert figures.layers_left([Yield(0, 3, 3, 0)], 32) == 3
    assert figures.layers_left([], 32) == 32


def a_slice(t0_ns: int, t1_ns: int, serving_ns: int = 0) -> DeviceSlice:
    return DeviceSlice(
        device_id="d",
        t0_ns=ANCHOR.utc_ns(t0_ns),
        t1_ns=ANCHOR.utc_ns(t1_ns),
        serving_ns=serving_ns,
        rollout_ns=0,
        train_ns=0,
        sync_ns=0,
        activation_ns=0,
        headroom_ns=0,
        idle_ns=t1_ns - t0_ns - serving_ns,
    )


@pytest.mark.parametrize(
    ("slices", "error_ns"),
    [
        ([a_slice(10, 40), a_slice(40, 90)], 0),
        ([a_slice(10, 40), a_slice(43, 90)], 3),
        ([a_slice(10, 40), a_slice(38, 90)], 2),
        ([a_slice(12, 40), a_slice(40, 85)], 7),
        ([], 80),
    ],
)
def test_a_gap_an_overlap_and_a_missing_end_are_errors_of_the_account(slices, error_ns):
    assert figures.slice_error_ns(slices, 10, 90, ANCHOR) == error_ns


def test_shares_of_the_device_are_of_all_slices_time():
    shares = figures.device_shares([a_slice(0, 40, 10), a_slice(40, 100, 20)])
    assert (shares["serving"], shares["idle"]) == (0.3, 0.7)
    assert figures.device_shares([]) == {}


@pytest.fixture
def page(tmp_path):
    ArbiterPage.create(tmp_path / "page").close()
    page = WatchedPage.attach(tmp_path / "page", Party.ROLLOUT)
    page.ends = LayerEnds(CPU)
    return page


def test_what_was_computed_after_a_wish_is_seen_when_the_gate_gives_way(page):
    serving = ArbiterPage.attach(page.path, Party.SERVING)
    page.ends.note()
    assert page.serving_wants() == 0
    wish_ns = monotonic_ns()
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, wish_ns)
    page.ends.note()
    assert page.serving_wants() == wish_ns
    page.open_span(Party.ROLLOUT, Span.YIELD, monotonic_ns())
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, 0)
    page.close_span(Party.ROLLOUT, monotonic_ns())
    page.open_span(Party.ROLLOUT, Span.ROLLOUT, monotonic_ns())
    (given,) = page.yields
    assert (given.on_device, given.left, given.after_wish) == (1, 0, 1)
    assert given.free_ns >= 0
    assert page.taken == 0


def test_a_core_that_the_kernel_took_is_counted_apart(page):
    page.write_span(Party.ROLLOUT, SpanRecord(Span.YIELD, 10, 20))
    assert (page.taken, page.yields) == (1, [])


def test_a_stack_has_layers_for_the_gate_and_no_fewer_tokens_than_it_can_have():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stack = Stack(CPU)
        assert len(layers_of(stack)) == stack.shape.layers
        assert stack.size(1) == stack.shape.grain
        stack.step()
    finally:
        torch.set_num_threads(threads)


@pytest.mark.long
def test_a_process_that_cannot_have_its_device_says_why(tmp_path):
    device = Device(tmp_path, device="cuda:99", core=None)
    try:
        with pytest.raises(PartyError, match="the process 'serve' failed: ") as error:
            device.start(monotonic_ns() + 60_000 * MS)
        assert not error.value.skip
    finally:
        device.close()
