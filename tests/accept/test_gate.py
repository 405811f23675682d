import pytest
import torch

from rose.accept.peer import Peer, PeerError
from rose.accept.stage import Scope, StageReport
from rose.accept.stages import gate
from rose.accept.stages.gate import Round
from rose.accept.stages.gate_processes import LayerEnds, RolledOut, Stack, Step, WatchedPage, Yield, make_party
from rose.clock import Anchor, monotonic_ns
from rose.events import DeviceSlice
from rose.runtime.coserving.hooks.gate import layers_of
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span

MS = 1_000_000
ANCHOR = Anchor(1_000)
CPU = torch.device("cpu")


@pytest.mark.long
def test_the_stage_claims_that_spans_add_up_and_that_a_step_gave_way(tmp_path):
    report = StageReport("gate", True, file=tmp_path / "out.json")
    gate.measure(Scope(gpu=None, quick=True, seconds=60, folder=tmp_path), report)
    claims = {claim.name: claim.value for claim in report.claims}
    assert claims.keys() == {
        "gate: slice sum error",
        "gate: layers left on the device at a yield",
        "gate: rollout steps, gated / ungated of the idle share",
    }
    assert claims["gate: slice sum error"] == 0
    modes = report.detail["modes"]
    assert modes.keys() == {"alone", "rollouts alone", "ungated", "yield"}
    assert report.detail["account"]["spans_lost"] == 0
    assert modes["yield"]["serving_steps"] > 0
    assert modes["yield"]["requests_ended"] == 0, "no turn was sent elsewhere"
    assert modes["alone"]["rollout_steps_per_s"] == 0, "no rollout process was at work"


def test_arrivals_are_those_of_their_seed_and_keep_serving_busy_for_two_fifths():
    requests = gate.arrivals(7, 10 * MS, 0, 400_000 * MS)
    assert requests == gate.arrivals(7, 10 * MS, 0, 400_000 * MS) != gate.arrivals(8, 10 * MS, 0, 400_000 * MS)
    assert sum(steps for _, steps in requests) * 10 / 400_000 == pytest.approx(0.4, abs=0.02)
    ends = [at_ns + steps * 10 * MS for at_ns, steps in requests]
    assert all(at_ns >= end for (at_ns, _), end in zip(requests[1:], ends, strict=False)), "alone, none waits"
    shorter = gate.arrivals(7, 10 * MS, 0, 4_000 * MS)
    assert shorter == requests[: len(shorter)], "a shorter round has the same requests, but fewer"


def one_round(*steps: Step, rollout: RolledOut | None = None) -> Round:
    return Round(from_ns=0, until_ns=1000 * MS, steps=steps, rollout=rollout)


def test_figures_of_a_mode_are_of_all_of_its_rounds():
    first = RolledOut(steps=10, yields=(Yield(1, 0),), ended=0)
    second = RolledOut(steps=30, yields=(Yield(0, 3), Yield(2, 1)), ended=0)
    due = gate.SETTLING_NS
    step, early = Step(due, due + 2 * MS, due + 100 * MS), Step(due - 1, due - 1, due - 1)
    late = Step(900 * MS, 950 * MS, 1100 * MS)
    rounds = [one_round(step, rollout=first), one_round(early, step, late, rollout=second)]
    figures = gate.mode_figures(rounds)
    assert (figures["serving_steps"], figures["rollout_steps_per_s"]) == (3, 20)
    assert figures["busy_share"] == pytest.approx((98 + 98 + 50) / 2000), "from begin to end, clipped to the round"
    assert figures["latency_p99_ms"] == pytest.approx(198)
    assert gate.layers_left(rounds, 32) == 3
    alone = gate.mode_figures([one_round()])
    assert (alone["latency_p99_ms"], alone["rollout_steps_per_s"]) == (None, 0)
    assert gate.layers_left([one_round()], 32) == 32, "without a yield, all layers count as left"


def a_slice(t0_ns: int, t1_ns: int) -> DeviceSlice:
    buckets = dict.fromkeys(("serving_ns", "rollout_ns", "train_ns", "sync_ns", "activation_ns", "headroom_ns"), 0)
    t0, t1 = ANCHOR.utc_ns(t0_ns), ANCHOR.utc_ns(t1_ns)
    return DeviceSlice(device_id="d", t0_ns=t0, t1_ns=t1, **buckets, idle_ns=t1_ns - t0_ns)


@pytest.mark.parametrize(
    ("edges", "error_ns"),
    [
        ([(10, 40), (40, 90)], 0),
        ([(10, 40), (43, 90)], 3),
        ([(10, 40), (38, 90)], 2),
        ([(12, 40), (40, 85)], 7),
        ([], 80),
    ],
)
def test_a_gap_an_overlap_and_a_missing_end_are_errors_of_the_account(edges, error_ns):
    assert gate.slice_error_ns([a_slice(*pair) for pair in edges], 10, 90, ANCHOR) == error_ns


def test_what_was_computed_after_a_wish_is_seen_when_the_gate_gives_way(tmp_path):
    ArbiterPage.create(tmp_path / "page").close()
    page = WatchedPage.attach(tmp_path / "page", Party.ROLLOUT)
    page.ends = LayerEnds(CPU)
    serving = ArbiterPage.attach(page.path, Party.SERVING)
    page.ends.note()
    assert page.serving_wants() == 0
    wish_ns = monotonic_ns()
    serving.set(Party.SERVING, Field.WANTED_SINCE_NS, wish_ns)
    page.ends.note()
    assert page.serving_wants() == wish_ns
    page.open_span(Party.ROLLOUT, Span.YIELD, monotonic_ns())
    assert page.yields == [(1, 0)]


def test_a_stack_has_layers_for_the_gate_and_no_fewer_tokens_than_it_can_have():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stack = Stack(CPU)
        assert len(layers_of(stack)) == stack.shape.layers
        stack.size(1)
        assert len(stack._tokens) == stack.shape.grain
        stack.step()
    finally:
        torch.set_num_threads(threads)


def test_a_process_that_cannot_have_its_device_says_why(tmp_path):
    with Peer("serving", make_party, "serving", "cuda:99", tmp_path / "page", None) as process:
        process.tell("start")
        with pytest.raises(PeerError, match="the process 'serving' failed at its start: "):
            process.hear()
