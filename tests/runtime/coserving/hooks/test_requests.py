from types import SimpleNamespace

import pytest

from rose.clock import monotonic_ns
from rose.runtime.coserving.page import Finish
from rose.runtime.coserving.questions import CLIENT_RECORDS
from tests.runtime.coserving.hooks.test_serving import MS, Serving, lend, looks_now
from tests.runtime.coserving.made_scheduler import Request


class Reason:
    def __init__(self, kind, status_code=None):
        self.kind, self.status_code = kind, status_code

    def to_json(self):
        return {"type": self.kind}


@pytest.mark.parametrize("overlap", [False, True])
def test_each_request_is_written_once_with_its_tokens_and_times(page, overlap):
    serving = Serving(page, overlap=overlap)
    began_ns = monotonic_ns()
    sizes = {10: 4, 20: 1, 30: 7}
    serving.serve(*(Request(f"r{prompt}", prompt, new_tokens=new) for prompt, new in sizes.items()))
    assert {one.prompt_tokens: one.output_tokens for one in serving.records} == sizes
    for one in serving.records:
        assert began_ns <= one.arrived_ns <= one.arrived_ns + one.ttft_ns <= one.ended_ns
        several = one.output_tokens > 1
        assert (one.tpot_mean_ns is not None, one.tpot_max_ns is not None) == (several, several)
        if several:
            assert one.tpot_mean_ns <= one.tpot_max_ns <= one.ended_ns - one.arrived_ns - one.ttft_ns
    assert serving.in_flight == 0


def test_the_times_are_those_of_the_tokens(page, clock):
    lengths = iter([5, 1, 9, 2])

    def work():
        clock.now_ns += next(lengths) * MS

    serving = Serving(page, work=work)
    request = Request("r", new_tokens=4)
    request.time_stats.forward_entry_time = request.time_stats.created_time = clock.now_ns / 1e9
    request._rose_arrived_ns = clock.now_ns
    serving.serve(request, turns=4)
    (one,) = serving.records
    assert (one.ttft_ns, one.tpot_mean_ns, one.tpot_max_ns) == (5 * MS, 4 * MS, 9 * MS)


def test_the_class_and_the_lease_at_the_arrival_are_kept(page):
    serving = Serving(page)
    serving.serve(Request("before", 10), turns=1)
    lend(page)
    serving.serve(Request("under", 20, priority=3), Request("odd", 30, priority=1 << 70))
    assert {one.prompt_tokens: (one.lease_number, one.priority) for one in serving.records} == {
        10: (0, None),
        20: (1, 3),
        30: (1, None),
    }


def test_a_request_whose_grammar_is_compiled_first_is_met_at_its_first_step(page):
    serving = Serving(page)
    lend(page)
    serving.loop.plugin.received()
    serving.plugin._telemetry.arrived = lambda: None
    serving.serve(Request("compiled"))
    assert [one.lease_number for one in serving.records] == [1]


def test_what_is_no_users_request_is_not_written(page):
    serving = Serving(page)
    others = [Request("HEALTH_CHECK_1"), Request(f"{CLIENT_RECORDS}1"), Request("prefix", new_tokens=0)]
    serving.serve(*others, Request("user"), turns=1)
    assert serving.in_flight == 1
    serving.serve()
    assert len(serving.records) == 1


def test_a_request_that_came_before_the_page_is_not_written(page):
    old = Request("old")
    old._rose_arrived_ns = monotonic_ns()
    serving = Serving(page)
    serving.serve(old, Request("new", 20))
    assert [one.prompt_tokens for one in serving.records] == [20]


@pytest.mark.parametrize(
    ("reason", "status"),
    [(None, None), ({"type": "abort", "status_code": 503, "message": "full"}, 503), ({"type": "abort"}, None)],
)
@pytest.mark.parametrize("turns", [0, 2])
def test_a_request_that_ends_outside_a_step_is_an_abort(page, reason, status, turns):
    serving = Serving(page)
    request = Request("r", new_tokens=8)
    serving.serve(request, turns=turns)
    if not turns:
        serving.plugin.received()
    assert serving.in_flight == 1
    serving.plugin.aborted(request, SimpleNamespace(finished_reason=reason))
    request.ended, serving.scheduler.waiting_queue = True, []
    serving.serve()
    (one,) = serving.records
    assert (one.finish, one.status, one.output_tokens, one.ttft_ns is None) == (Finish.ABORT, status, turns, not turns)
    assert serving.in_flight == 0


def test_an_abort_that_cannot_be_read_ends_the_lending_and_not_serving(page):
    serving = Serving(page)
    request = Request("r")
    serving.serve(request, turns=1)
    serving.plugin.aborted(request, SimpleNamespace(finished_reason={"status_code": "odd"}))
    assert "ValueError" in serving.plugin.state.reason
    serving.serve(Request("next"))


def test_why_a_request_ended_is_kept(page):
    serving = Serving(page)
    reasons = {10: Reason("stop"), 20: Reason("length"), 30: Reason("abort", 400), 40: Reason("abort")}
    for prompt, reason in reasons.items():
        request = Request(f"r{prompt}", prompt)
        request.finished_reason = reason
        serving.serve(request)
    assert {one.prompt_tokens: (one.finish, one.status) for one in serving.records} == {
        10: (Finish.STOP, None),
        20: (Finish.LENGTH, None),
        30: (Finish.ABORT, 400),
        40: (Finish.ABORT, None),
    }


def test_an_engine_that_detaches_leaves_no_request_behind_and_one_that_returns_continues(page):
    serving = Serving(page)
    serving.serve(Request("first"))
    serving.serve(Request("under way", new_tokens=50), turns=2)
    serving.plugin.attach(-2)
    assert serving.in_flight == 0
    serving.plugin._path = page.path
    looks_now(serving.plugin)
    serving.serve(Request("second", 20))
    assert [one.prompt_tokens for one in serving.records] == [10, 20]
