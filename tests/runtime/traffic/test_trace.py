from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.config import TrafficConfig
from rose.runtime.traffic.trace import Trace, TraceError, fit, load, open_trace, read

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="")
    return path


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    count = draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    gaps = rng.integers(0, draw(st.sampled_from([1, 10**6, 10**10])), count)
    gaps[0] = 0
    return Trace("t", np.cumsum(gaps), rng.integers(1, 10_000, count), rng.integers(1, 500, count))


def test_reads_the_public_format(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"
    trace = read(write(tmp_path / "azure.csv", HEADER.replace("\n", "\r\n") + rows))
    assert trace.name == "azure"
    assert trace.arrival_ns.tolist() == [0, 52_000_000]
    assert trace.prompt_tokens.tolist() == [4808, 3180]
    assert trace.output_tokens.tolist() == [10, 8]


def test_rows_in_any_order_other_columns_and_zones(tmp_path: Path) -> None:
    text = (
        "Model,GeneratedTokens,TIMESTAMP,ContextTokens\n"
        "m,2,2024-05-10 00:00:01+00:00,20\n\n"
        "m,1,2024-05-10T01:00:00.5+01:00,10\n"
        "m,3,2024-05-10 00:00:00.500001Z,30\n"
    )
    trace = read(write(tmp_path / "t.csv", text))
    assert trace.arrival_ns.tolist() == [0, 1_000, 500_000_000]
    assert trace.prompt_tokens.tolist() == [10, 30, 20]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: no column TIMESTAMP, ContextTokens, GeneratedTokens; it has \[\]"),
        ("TIMESTAMP,ContextTokens\n", "line 1: no column GeneratedTokens"),
        (HEADER, "has no requests"),
        (HEADER + "2023-11-16 18:17:03,5\n", "line 2, column GeneratedTokens: '' is not a whole number"),
        (HEADER + "2023-11-16 18:17:03,5,5\nnoon,5,5\n", "line 3, column TIMESTAMP: 'noon' is not a time like"),
        (HEADER + "2023-13-16 18:17:03,5,5\n", "line 2, column TIMESTAMP: '2023-13-16 18:17:03'"),
        (HEADER + "2023-11-16 18:17:03,0,5\n", "line 2, column ContextTokens: '0' is not a whole number from 1"),
        (HEADER + "2023-11-16 18:17:03,5,-1\n", "line 2, column GeneratedTokens: '-1'"),
        (HEADER + "2023-11-16 18:17:03,5,5.0\n", "line 2, column GeneratedTokens: '5.0'"),
        (HEADER + "2023-11-16 18:17:03,٣,5\n", "line 2, column ContextTokens: '٣'"),
    ],
)
def test_errors_name_file_line_column_and_value(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "bad.csv", text)
    with pytest.raises(TraceError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read trace .*none\.csv: No such file.*`bursty`"):
        load(str(tmp_path / "none.csv"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="is not a CSV text file"):
        read(tmp_path / "binary.csv")


def test_a_fleet_replays_nothing_unless_its_file_names_a_trace() -> None:
    bursty = load("bursty")
    assert bursty.name == "bursty"
    assert len(bursty) == 3526
    assert open_trace(TrafficConfig()) is None
    opened = open_trace(TrafficConfig(trace="bursty"))
    assert opened is not None
    assert opened.arrival_ns.tolist() == bursty.arrival_ns.tolist()


@settings(deadline=None)
@given(
    traces(),
    st.tuples(st.floats(0.01, 100), st.integers(1, 500), st.integers(1, 100)),
    st.none() | st.floats(0.1, 1000),
    st.sampled_from([0.5, 1.0, 3.0]),
)
def test_a_fitted_trace_keeps_within_its_limits(
    trace: Trace, limits: tuple[float, int, int], duration_s: float | None, time_scale: float
) -> None:
    rate, prompt_max, output_max = limits
    config = TrafficConfig(requests_per_s_max=rate, prompt_tokens_max=prompt_max, output_tokens_max=output_max)
    fitted = fit(trace, config, duration_s=duration_s, time_scale=time_scale)
    kept, period_s = fitted.trace, fitted.period_ns / 1e9
    assert len(kept) == 1 or len(kept) <= rate * period_s
    assert kept.arrival_ns[-1] <= fitted.period_ns
    if duration_s is not None:
        assert kept.arrival_ns[-1] < round(duration_s * 1e9)
    window = np.rint(trace.arrival_ns * time_scale).astype(np.int64)
    if duration_s is not None:
        window = window[window < round(duration_s * 1e9)]
    assert fitted.keep_share == len(kept) / len(window)
    assert np.isin(kept.arrival_ns, window).all()
    for before, after, limit, scale in (
        (trace.prompt_tokens, kept.prompt_tokens, prompt_max, fitted.length_scale),
        (trace.output_tokens, kept.output_tokens, output_max, fitted.output_length_scale),
    ):
        ranked = np.sort(before)[int(np.ceil(0.99 * len(before))) - 1]
        assert scale == min(1.0, limit / ranked)
        assert set(after.tolist()) <= set(np.maximum(1, np.rint(before * scale)).astype(int).tolist())


def test_thinning_keeps_the_shape_of_bursts() -> None:
    rng = np.random.default_rng(0)
    in_burst = np.arange(2000) % 200 < 20
    arrivals = np.sort(rng.choice(np.flatnonzero(np.repeat(in_burst, 10)), 4000) * 100_000_000)
    ones = np.ones(4000, np.int64)
    trace = Trace("bursts", arrivals - arrivals[0], ones, ones)
    fitted = fit(trace, TrafficConfig(requests_per_s_max=0.5))
    assert 0.2 < fitted.keep_share < 0.3
    windows = np.arange(0, fitted.period_ns + 10**10, 10**10)
    before, after = (np.histogram(t.arrival_ns, windows)[0] for t in (trace, fitted.trace))
    assert np.corrcoef(before, after)[0, 1] > 0.95


def test_nothing_is_scaled_up() -> None:
    trace = Trace("small", np.array([0, 10**9]), np.array([3, 4]), np.array([1, 2]))
    fitted = fit(trace, TrafficConfig(requests_per_s_max=50))
    assert (fitted.keep_share, fitted.length_scale, fitted.output_length_scale) == (1.0, 1.0, 1.0)
    assert fitted.trace.prompt_tokens.tolist() == [3, 4]
    assert fitted.period_ns == 2 * 10**9
    with pytest.raises(ValueError, match="time_scale 0 and duration_s None must be positive"):
        fit(trace, TrafficConfig(), time_scale=0)
