"""Strategies and helpers that the ledger's tests share."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import strategies as st

from rose.events import BUCKETS, KINDS, NOT_MEASURED, DeviceSlice, Event, Lease, Power, Request

_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
#: Times that a TIMESTAMP shows exactly, in microseconds: 1970 to 2200.
_AT = st.integers(0, 7_258_118_400_000_000)


def _values(name: str, hint: Any) -> st.SearchStrategy[Any]:
    if name in ("at_us", "expires_at_us"):
        return _AT
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
        return st.none() | _values(name, inner)
    if typing.get_origin(hint) is Literal:
        return st.sampled_from(typing.get_args(hint))
    return {int: _INT64, str: _TEXT, float: st.floats(), bool: st.booleans()}[hint]


@st.composite
def _slices(draw: st.DrawFn) -> DeviceSlice:
    parts = draw(st.lists(st.integers(0, 10**15), min_size=len(BUCKETS), max_size=len(BUCKETS)))
    t0 = draw(st.integers(0, 4 * 10**18))
    named = {f"{bucket}_ns": part for bucket, part in zip(BUCKETS, parts, strict=True)}
    return DeviceSlice(at_us=draw(_AT), device_id=draw(_TEXT), t0_ns=t0, t1_ns=t0 + sum(parts), **named)


@st.composite
def _power(draw: st.DrawFn) -> Power:
    hints = typing.get_type_hints(Power)
    names = [field.name for field in dataclasses.fields(Power) if field.name not in ("event_id", "power_mw", "source")]
    power_mw = draw(st.none() | _INT64)
    source = NOT_MEASURED if power_mw is None else draw(_TEXT)
    return Power(power_mw=power_mw, source=source, **{name: draw(_values(name, hints[name])) for name in names})


def _of(kind: str) -> st.SearchStrategy[Event]:
    if kind == "device_slice":
        return _slices()
    if kind == "power":
        return _power()
    hints = typing.get_type_hints(KINDS[kind])
    names = [field.name for field in dataclasses.fields(KINDS[kind]) if field.name != "event_id"]
    return st.builds(KINDS[kind], **{name: _values(name, hints[name]) for name in names})


#: Any event of any kind, without an event_id of its own.
events: st.SearchStrategy[Event] = st.sampled_from(sorted(KINDS)).flatmap(_of)


@pytest.fixture(scope="session")
def any_event() -> st.SearchStrategy[Event]:
    return events


@pytest.fixture(scope="session")
def lease() -> Callable[..., Lease]:
    """Makes a lease event; any field can be given."""

    def make(action: str = "granted", **fields: Any) -> Lease:
        usual = {"lease_id": "l", "kv_budget_bytes": 100, "compute_share": 1.0, "expires_at_us": 10_000_000}
        return Lease(**{"action": action, **usual, **fields})

    return make


@pytest.fixture(scope="session")
def request_event() -> Callable[..., Request]:
    """Makes a serving request's event; any field can be given."""

    def make(**fields: Any) -> Request:
        usual: dict[str, Any] = {
            "request_id": "q",
            "outcome": "completed",
            "prompt_tokens": 10,
            "output_tokens": 5,
            "ttft_ns": 100,
            "tpot_mean_ns": 10,
            "tpot_max_ns": 20,
            "e2e_ns": 140,
            "ttft_budget_ns": 100,
            "tpot_budget_ns": 10,
            "send_delay_ns": 0,
        }
        return Request(**{**usual, **fields})

    return make
