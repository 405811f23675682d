import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coserve import __main__ as coserve
from benchmarks.coserve import account, claims
from rose.accept.coserve import traffic
from rose.accept.coserve.keeper import IDLE, POLICIES, ROSE_LAYERS, SHARE_ALL, SOLO, Keeper
from rose.accept.coserve.rounds import Round
from rose.accept.report import ROOT, Report
from rose.clock import monotonic_ns
from rose.runtime.coserving.page import ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.policy.kv import KvMemory
from rose.runtime.policy.slack import Budgets, Hold
from rose.runtime.traffic import trace as traces
from tests.accept.made_requests import completed

BUDGETS = Budgets(100_000_000, 20_000_000)
MEMORY = KvMemory(
    device_bytes=1000, serving_bytes_per_token=1, rollout_bytes_per_token=1, headroom=0.2, high_watermark=0.5
)
MS = 1_000_000


def one_round(
    policy: str, number: int, ttft_ms: list[float], spans: list[SpanRecord], tokens: int = 0, length_ns: int = 1000
) -> Round:
    served = tuple(completed(round(value * MS), round(value * MS / 10)) for value in ttft_ms)
    return Round(
        policy=policy,
        number=number,
        t0_ns=0,
        t1_ns=length_ns,
        requests=served,
        spans=tuple(spans),
        samples=((5, 0), (50, 1)),
        rollout={},
        tokens=tokens,
        lost_spans=0,
    )


RECORDS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from(Span)), max_size=20)


@given(serving=RECORDS, rollout=RECORDS, policy=st.sampled_from([IDLE, ROSE_LAYERS, SHARE_ALL]))
def test_causes_and_buckets_add_up_whatever_the_spans(
    serving: list[tuple[int, int, Span]], rollout: list[tuple[int, int, Span]], policy: str
) -> None:
    spans: list[SpanRecord] = []
    for records, kinds in ((serving, (Span.SERVING,)), (rollout, (Span.ROLLOUT, Span.HELD, Span.YIELD))):
        at = -20
        for gap, length, kind in records:  # Those of one party follow one another.
            spans.append(SpanRecord(kind if kind in kinds else kinds[0], at + gap, at + gap + length, Hold.NO_LEASE))
            at += gap + length
    one = one_round(policy, 0, [], spans, length_ns=300)
    lent = one.device
    assert lent["serving_ns"] + lent["rollout_ns"] + lent["headroom_ns"] + lent["idle_ns"] == 300
    assert sum(account.held_ns(one).values()) == lent["headroom_ns"]
    assert sum(account.idle_by_cause_ns(one).values()) == lent["idle_ns"]
    assert min(lent["serving_ns"], lent["rollout_ns"]) >= 0
    solo = one_round(SOLO, 0, [], [], length_ns=300)
    assert sum(account.lost_idle_ns(solo, one).values()) == 300 - lent["rollout_ns"]


def played() -> dict[str, list[Round]]:
    solo = [SpanRecord(Span.SERVING, 0, 400)]
    rose = [*solo, SpanRecord(Span.ROLLOUT, 450, 1000)]
    return {
        SOLO: [one_round(SOLO, number, [10, 20, 30 + number], solo) for number in range(3)],
        IDLE: [one_round(IDLE, number, [11, 22, 300], rose, tokens=90) for number in range(3)],
        SHARE_ALL: [one_round(SHARE_ALL, number, [40, 80, 90], rose, tokens=100) for number in range(3)],
    }


def test_what_is_claimed_of_rounds() -> None:
    report = Report("coserve", quick=False)
    claims.claim(report, played(), BUDGETS, 60.0, 4)
    claimed = {claim.name: claim for claim in report.claims}
    assert claimed["TTFT p50, idle / solo"].value == pytest.approx(1.1)
    assert claimed["TTFT p99, idle / solo"].value > 5
    assert claimed["requests over budget, idle less solo"].value == 3
    assert claimed["idle time harvested"].value == pytest.approx(550 / 600)
    assert claimed["rollout tokens, idle / share_all"].value == pytest.approx(0.9)
    # What was not measured does not hold.
    assert not claimed["serving arrival to rollouts off the device, p99"].holds
    assert "not measured" in report.detail["given_way"][IDLE]["reason"]
    lost = report.detail["harvest"][IDLE]["lost_s"]
    assert sum(lost.values()) == pytest.approx(report.detail["harvest"][IDLE]["idle_alone_s"] - 3 * 550e-9, abs=1e-3)
    assert len(report.detail["rounds"]) == 9
    json.dumps(report.to_json(), allow_nan=False)


def test_windows_of_the_sample_trace_have_the_rate_that_is_wanted() -> None:
    trace = traffic.scaled(traces.read(traffic.SAMPLE), *traffic.CORE_TOKENS_MAX)
    windows = [traffic.window(trace, number, 60, 1.2) for number in (0, 1, 2, 1000)]
    for arrivals in windows:
        assert len(arrivals.arrival_ns) == 72
        assert 0 <= arrivals.arrival_ns[0] <= arrivals.arrival_ns[-1] < 60e9
        assert list(arrivals.arrival_ns) == sorted(arrivals.arrival_ns)
        assert np.median(arrivals.prompt_tokens) < traffic.CORE_TOKENS_MAX[0]
    assert windows[0] != windows[1]
    assert windows[1] == traffic.window(trace, 1, 60, 1.2)


def test_mooncake_s_lines_are_read_and_spread_within_their_grain(tmp_path: Path) -> None:
    rows = [{"timestamp": 3000 * (row // 10), "input_length": 9 + row, "output_length": 3} for row in range(100)]
    file = tmp_path / "made.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    trace = account.mooncake(file)
    assert (trace.name, len(trace)) == ("made", 100)
    assert len(set(trace.arrival_ns.tolist())) == 100
    assert sorted(trace.prompt_tokens.tolist()) == list(range(9, 109))


def test_the_keeper_renews_the_lease_reads_the_rings_and_takes_the_lease_back(tmp_path: Path) -> None:
    page = ArbiterPage.create(tmp_path / "page")
    page.open_span(Party.SERVING, Span.SERVING, 1)
    page.close_span(Party.SERVING, 2)  # Of an earlier round.
    keeper = Keeper(page, MEMORY, POLICIES[IDLE], BUDGETS, 64, 4096)
    keeper.start()
    assert page.lease().expires_ns > monotonic_ns()
    assert page.budgets() == BUDGETS
    first = page.lease().expires_ns
    page.open_span(Party.ROLLOUT, Span.ROLLOUT, 3)
    page.close_span(Party.ROLLOUT, 4)
    deadline = time.monotonic() + 30
    while page.lease().expires_ns == first and time.monotonic() < deadline:
        time.sleep(0.05)
    page.open_span(Party.ROLLOUT, Span.HELD, 5)
    page.set(Party.ROLLOUT, Field.LAST_HOLD, Hold.NO_LEASE)
    keeper.stop()
    assert first < monotonic_ns() + 3_000_000_000
    assert page.lease().expires_ns == 0
    # That of an engine that still waits is read as it stands.
    assert [(record.start_ns, record.aux) for record in keeper.spans] == [(3, 0), (5, Hold.NO_LEASE)]
    assert keeper.samples
    keeper.stop()


def test_an_option_that_is_wrong_is_named(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for options, message in (
        (["--seconds", "x"], "number of seconds"),
        (["--policies", "rose,x"], "'x' is no policy; known are solo"),
        (["--gpu", "99"], "--gpu and --model go together"),
        (["--gpu", "99", "--model", "."], "error: --gpu: GPU 99 is not there"),
    ):
        monkeypatch.setattr(sys, "argv", ["coserve", *options])
        with pytest.raises(SystemExit, match="2"):
            coserve.main()
        assert message in capsys.readouterr().err


@pytest.mark.live
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the device and the host need a core each")
def test_what_was_started_is_stopped_when_it_is_told_to_end() -> None:
    command = [sys.executable, "-m", "benchmarks.coserve", "--quick"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE) as run:
        deadline = time.monotonic() + 60
        # Two engines and two load generators at least.
        while len(started := psutil.Process(run.pid).children(recursive=True)) < 4 and time.monotonic() < deadline:
            time.sleep(0.2)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
    assert len(started) >= 4
    assert psutil.wait_procs(started, timeout=20)[1] == []
