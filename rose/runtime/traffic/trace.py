"""Reads traces with the columns of the Azure LLM inference traces (Splitwise, ISCA 2024), and fits them to a host."""

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rose.config import TrafficConfig
from rose.errors import UserError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_NS_PER_S = 1_000_000_000
_SAMPLES = Path(__file__).parents[3] / "sample_traces"
Ints = npt.NDArray[np.int64]


class TraceError(UserError):
    """A trace that cannot be used. The message names the file, line, column and value."""


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    arrival_ns: Ints
    prompt_tokens: Ints
    output_tokens: Ints

    def __post_init__(self) -> None:
        count = len(self.arrival_ns)
        assert count > 0, "a trace has at least one request"
        assert len(self.prompt_tokens) == len(self.output_tokens) == count
        assert self.arrival_ns[0] >= 0, "arrivals count from the first request"
        assert (np.diff(self.arrival_ns) >= 0).all(), "arrivals are in order"
        assert min(self.prompt_tokens.min(), self.output_tokens.min()) >= 1, "lengths are at least one token"

    def __len__(self) -> int:
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True)
class FittedTrace:
    trace: Trace
    keep_share: float
    length_scale: float  #: Factors of prompt lengths, output lengths and gaps.
    output_length_scale: float
    time_scale: float
    period_ns: int


def read(path: Path) -> Trace:
    """Return the trace in a file, whose rows may be in any order. Raises TraceError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            header = list(rows.fieldnames or ())
            if missing := [column for column in COLUMNS if column not in header]:
                raise TraceError(f"trace {path}, line 1: no column {', '.join(missing)}; it has {header}")
            requests = [_request(f"trace {path}, line {rows.line_num}", row) for row in rows]
    except OSError as error:
        raise TraceError(f"cannot read trace {path}: {error.strerror}. Set traffic.trace to a CSV file, or to `bursty`")
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"trace {path} is not a CSV text file: {error}")
    if not requests:
        raise TraceError(f"trace {path} has no requests")
    table: Ints = np.array(requests, np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    arrival, prompt, output = table.T
    return Trace(path.stem, arrival - arrival[0], prompt, output)


def load(name: str) -> Trace:
    return read(_SAMPLES / "bursty.csv" if name == "bursty" else Path(name).expanduser())


def open_trace(config: TrafficConfig) -> Trace | None:
    return None if config.trace == "none" else load(config.trace)


def fit(
    trace: Trace, config: TrafficConfig, *, duration_s: float | None = None, time_scale: float = 1.0
) -> FittedTrace:
    """Return the trace within the limits of `config`, shortened to `duration_s`. Surplus requests are dropped at
    random. Lengths in tokens are scaled down until their 99th percentile (nearest rank) is at most the limit."""
    if time_scale <= 0 or (duration_s is not None and duration_s <= 0):
        raise ValueError(f"time_scale {time_scale} and duration_s {duration_s} must be positive")
    arrival: Ints = np.rint(trace.arrival_ns * time_scale).astype(np.int64)
    if duration_s is not None:
        arrival = arrival[arrival < round(duration_s * _NS_PER_S)]
    count = len(arrival)
    # From the first arrival to the expected one after the last.
    period_ns = max(_NS_PER_S, int(arrival[-1]) * count // max(1, count - 1))
    if duration_s is not None and count < len(trace):
        period_ns = round(duration_s * _NS_PER_S)
    room = max(1, math.floor(config.requests_per_s_max * period_ns / _NS_PER_S))
    chosen = np.arange(count)
    if room < count:
        chosen = np.sort(np.random.default_rng(config.seed).choice(count, room, replace=False))
    prompt_scale = _scale_down(trace.prompt_tokens, config.prompt_tokens_max)
    output_scale = _scale_down(trace.output_tokens, config.output_tokens_max)
    fitted = Trace(
        trace.name,
        arrival[chosen],
        _scaled(trace.prompt_tokens[chosen], prompt_scale),
        _scaled(trace.output_tokens[chosen], output_scale),
    )
    return FittedTrace(fitted, len(chosen) / count, prompt_scale, output_scale, time_scale, period_ns)


def _request(place: str, row: Mapping[str, str | None]) -> list[int]:
    request: list[int] = []
    for column in COLUMNS:
        value, time = (row[column] or "").strip(), column == "TIMESTAMP"
        try:
            request.append(_timestamp_ns(value) if time else _length(value))
        except ValueError:
            expected = "a time like 2023-11-16 18:17:03.979960" if time else "a whole number from 1"
            raise TraceError(f"{place}, column {column}: {value!r} is not {expected}") from None
    return request


def _timestamp_ns(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6) * 1_000


def _length(text: str) -> int:
    # Longer values would not fit the arrays.
    if re.fullmatch("[0-9]{1,10}", text) is None or int(text) < 1:
        raise ValueError
    return int(text)


def _scale_down(lengths: Ints, tokens_max: int) -> float:
    return min(1.0, tokens_max / int(np.percentile(lengths, 99, method="inverted_cdf")))


def _scaled(lengths: Ints, scale: float) -> Ints:
    scaled: Ints = np.maximum(1, np.rint(lengths * scale)).astype(np.int64)
    return scaled
