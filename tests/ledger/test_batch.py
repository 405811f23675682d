from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sql
from rose.events import BUCKETS, Event
from rose.ledger import batch, rows
from rose.ledger.layout import LedgerError


def _power(**columns: list[Any]) -> pa.Table:
    usual: dict[str, list[Any]] = {
        "kind": ["power"] * 3,
        "run_id": ["r"] * 3,
        "provenance": ["live"] * 3,
        "at_us": [1, 2, 3],
        "t0_ns": [0, 1, 2],
        "t1_ns": [1, 2, 3],
        "power_mw": [5, 5, 5],
        "source": ["rapl"] * 3,
    }
    return pa.table({**usual, **columns})


def _slices(idle_ns: list[int]) -> pa.Table:
    table = _power(kind=["device_slice"] * 3, device_id=["d"] * 3, t0_ns=[0, 10, 20], t1_ns=[10, 20, 30]).drop(
        ["power_mw", "source"]
    )
    for bucket in BUCKETS[:-1]:
        table = table.append_column(f"{bucket}_ns", pa.array([0, 0, 0]))
    return table.append_column("idle_ns", pa.array(idle_ns)).append_column("overlap_ns", pa.array([0, 0, 0]))


def _not_text() -> pa.Array:
    """Three texts of bytes that are none, as any client can send them."""
    return pa.Array.from_buffers(pa.string(), 3, [None, *pa.array([b"\xff", b"ok", b"ok"], pa.binary()).buffers()[1:]])


@given(st.data())
def test_what_record_takes_a_table_may_hold(any_event: st.SearchStrategy[Event], data: st.DataObject) -> None:
    events = data.draw(st.lists(any_event, min_size=1, max_size=6))
    items: list[rows.Row | pa.Table] = [(event.kind, rows.encode(event)) for event in events]
    table = rows.table("w", 0, "r", "live", items).drop(["writer", "seq"])
    assert batch.checked(table).to_pylist() == table.to_pylist()


#: What no field, or not every field, may hold.
_ODD: list[Any] = [
    None,
    "",
    "x",
    "\0",
    "not measured",
    "granted",
    0,
    1,
    -1,
    2**54,
    2**55 - 1,
    2**55,
    2**62 - 1,
    2**62,
    2**63 - 1,
    -(2**63),
    4611686018427387,
    4611686018427388,
    0.5,
    math.nan,
    math.inf,
    -math.inf,
    True,
    False,
]


@pytest.mark.long
@given(st.data())
def test_record_append_and_the_views_refuse_the_same(
    any_event: st.SearchStrategy[Event], views: duckdb.DuckDBPyConnection, data: st.DataObject
) -> None:
    event = data.draw(any_event)
    names = [each.name for each in rows.fields_of(event.kind)]
    odd = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(_ODD), max_size=2))
    values = {name: odd.get(name, getattr(event, name)) for name in names}
    # A kind's own check of itself may come first, at the making.
    refusal = _refusal(lambda: rows.encode(dataclasses.replace(event, **odd)), LedgerError, ValueError, TypeError)
    table = pa.table(
        {
            "run_id": ["r"],
            **{name: [value] for name, value in values.items() if value is not None},
            "kind": [event.kind],
            "provenance": ["live"],
        }
    )
    of_table = _refusal(lambda: batch.checked(table), LedgerError)
    assert (refusal is None) == (of_table is None), f"record says {refusal}, append says {of_table}"
    if refusal is not None and of_table is not None and refusal.startswith("event") and len(odd) == 1:
        # A column of numbers holds an integer as a number with a fraction.
        words = refusal.partition(", got ")[0]
        assert of_table.startswith(words) or "column" in of_table, "in the same words"
    try:
        # Where each value is of the column's type, a file can hold it, and the views judge it.
        taken = pa.table({name: table[name].cast(rows.schema().field(name).type) for name in table.column_names})
        sorts = [batch.fits(table[name].type, rows.schema().field(name).type) for name in table.column_names]
    except pa.ArrowException:
        return
    if all(sorts):
        whole = pa.concat_tables([rows.schema().empty_table(), taken], promote_options="default")
        views.register("given", whole.set_column(0, "writer", pa.array(["w"])).set_column(1, "seq", pa.array([0])))
        faulty = views.sql("SELECT fault FROM faulty_event").fetchall()
        assert bool(faulty) == (refusal is not None), f"record says {refusal}, the view {faulty}"


def _refusal(act: Callable[[], object], *errors: type[Exception]) -> str | None:
    try:
        act()
    except errors as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def views() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.register("given", rows.schema().empty_table())
        connection.execute("CREATE VIEW stored_event AS FROM given")
        for view in ("event", "device_slice", "faulty_event"):
            connection.execute(sql.read(f"views/{view}.sql"))
        yield connection


def test_other_integer_widths_and_large_text_are_taken() -> None:
    table = _power()
    table = table.set_column(6, "power_mw", pa.array([5, 5, 5], pa.int16()))
    table = table.set_column(7, "source", pa.array(["rapl"] * 3, pa.large_string()))
    kinds = pa.array(["power"] * 3).dictionary_encode()
    assert batch.checked(table.set_column(0, "kind", kinds)).schema == batch.checked(_power()).schema


def test_power_may_be_missing_where_it_was_not_measured() -> None:
    table = _power(power_mw=[5, None, 5], source=["rapl", "not measured", "rapl"])
    assert batch.checked(table)["power_mw"].to_pylist() == [5, None, 5]
    unmeasured = _power(source=["not measured"] * 3)
    for table in (unmeasured.drop("power_mw"), unmeasured.set_column(6, "power_mw", pa.nulls(3, pa.int64()))):
        assert "power_mw" not in batch.checked(table).column_names


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (_power(power=[1, 1, 1]), "column 'power' is not a column of events"),
        (_power(seq=[1, 2, 3]), "column 'seq' is not a column of events"),
        (_power().drop("run_id"), "column 'run_id' is missing; every event has kind, run_id, provenance, at_us"),
        (_power().drop("source"), "event 'power': column 'source' is missing"),
        (_power(at_us=[1, None, 3]), "event 'power': at_us must be a value, got None in row 1"),
        (
            _power(power_mw=[1, 2, None]),
            "event 'power': power_mw must be a value unless source is 'not measured', got None",
        ),
        (_power().drop("power_mw"), "event 'power': column 'power_mw' is missing"),
        (
            _power(source=["rapl", "not measured", "rapl"]),
            "power_mw must be empty where source is 'not measured', got 5",
        ),
        (_power(power_mw=["x", "y", "z"]), "column 'power_mw' must be int64, not string"),
        (_power(power_mw=["1", "2", "3"]), "column 'power_mw' must be int64, not string"),
        (_power(power_mw=[True, True, False]), "column 'power_mw' must be int64, not bool"),
        (_power(device_id=[1, 2, 3]), "column 'device_id' must be string, not int64"),
        (_power(at_us=[1, 2**63 - 1, 3]), "event 'power': at_us must be an integer from 0 to 4611686018427387, UTC"),
        (_power(busy_share=[0.5, 0.5, math.nan]), "busy_share must be a number from 0 to 1, got nan in row 2"),
        (_power(busy_share=[0.5, 5.0, 0.5]), "busy_share must be a number from 0 to 1, got 5.0 in row 1"),
        (_power(source=["rapl", "guess", "rapl"]), "source must be one of nvml-energy, nvml-power, rapl, other, not"),
        (_power(t1_ns=[1, 0, 3]), "event 'power': t1_ns must be at or after t0_ns, got 0 in row 1"),
        (_power(event_id=["a", "", "c"]), "event_id must be text that is not empty, got '' in row 1"),
        (_slices([10, 10, 10]).drop("device_id"), "event 'device_slice': column 'device_id' is missing"),
        (_power(source=_not_text()), "the table is damaged: Column 7: In chunk 0: Invalid: Invalid UTF8"),
        (_power(power_mw=[1.5, 2.0, 3.0]), "column 'power_mw' must be int64, not double"),
        (_power(kind=["power", "lunch", "power"]), "'lunch' is not a kind of event"),
        (_power(run_id=["r", "", "r"]), "run_id must be the run's id, got '' in row 1"),
        (
            _power(provenance=["live", "live", "made up"]),
            "provenance must be one of live, replay, simulated, got 'made",
        ),
        (_power(output_tokens=[None, None, 7]), "output_tokens must be empty in an event of kind 'power', got 7"),
        (_slices([10, 9, 10]), "t1_ns must be t0_ns and the sum of the seven buckets, got 20 in row 1"),
        (
            _slices([10, 2**63 - 1, 10]),
            "idle_ns must be an integer from 0 to 36028797018963967 nanoseconds, got 9223372036854775807 in row 1",
        ),
    ],
)
def test_a_table_that_is_no_events_is_refused_by_column_value_and_row(table: pa.Table, says: str) -> None:
    with pytest.raises(LedgerError) as caught:
        batch.checked(table)
    assert says in str(caught.value)


@pytest.mark.long
@given(st.integers(0, 9), st.data())
def test_a_part_of_a_table_is_checked_like_the_whole(first: int, data: st.DataObject) -> None:
    """Where its rows do not begin at a byte of the bits that say which have a value."""
    rows_count = data.draw(st.integers(1, 20))
    kinds = data.draw(st.lists(st.sampled_from(["power", "device_slice"]), min_size=30, max_size=30))
    table = pa.concat_tables([_power().slice(0, 1), _slices([10] * 3).slice(0, 1)], promote_options="default")
    whole = table.take(pa.array([0 if kind == "power" else 1 for kind in kinds])).combine_chunks()
    part = whole.slice(first, rows_count)
    assert batch.checked(part).to_pylist() == [
        {name: value for name, value in row.items() if name in batch.checked(part).column_names}
        for row in part.to_pylist()
    ]
    row = data.draw(st.integers(0, rows_count - 1))
    name, wrong = ("source", "a guess") if kinds[first + row] == "power" else ("idle_ns", -1)
    values = whole[name].to_pylist()
    values[first + row] = wrong
    spoilt = whole.set_column(whole.column_names.index(name), name, pa.array(values)).slice(first, rows_count)
    with pytest.raises(LedgerError, match=f"{name} must be .* in row {row}$"):
        batch.checked(spoilt)


def test_slices_that_sum_and_empty_columns_are_taken() -> None:
    table = _slices([10, 10, 10]).append_column("lease_id", pa.array([None] * 3, pa.string()))
    assert "lease_id" not in batch.checked(table).column_names
    assert batch.checked(table.slice(0, 0)).num_rows == 0


def test_every_kind_can_come_as_a_table(any_event: st.SearchStrategy[Event]) -> None:
    assert {field.name for field in dataclasses.fields(Event)} <= set(rows.schema().names)
