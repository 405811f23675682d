import dataclasses
import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sql
from rose.events import BUCKETS, DeviceSlice, Event, Lease, Power, Run, Step, Verdict
from rose.ledger.files import rows, sources
from rose.ledger.files.layout import LedgerError


def _step(**fields):
    whole = ("step", "groups", "trajectories", "trajectories_accepted", "tokens_trained")
    spans = ("rollout_ns", "train_ns", "sync_ns", "total_ns")
    usual = dict.fromkeys((*whole, *spans), 1)
    usual |= dict.fromkeys(("reward_mean", "loss", "entropy", "kl", "grad_norm"), 0.5)
    return Step(**{**usual, **fields})


def _power(**fields):
    return Power(**{"t0_ns": 0, "t1_ns": 1, "power_mw": 1, "source": "rapl", **fields})


def _slice(**fields):
    usual = {f"{bucket}_ns": 0 for bucket in BUCKETS} | {"t0_ns": 0, "t1_ns": 10, "idle_ns": 10}
    return DeviceSlice(**{**usual, "device_id": "d", **fields})


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (_step(step=1.5), "'step': step must be an integer from 0 to 36028797018963967, got 1.5"),
        (_step(step=2**63), "step must be an integer from 0"),
        (_step(step=True), "step must be an integer from 0 to 36028797018963967, got True"),
        (_step(step=np.array([1, 2])), "step must be an integer"),
        (_step(at_us=2**63 - 1), "at_us must be an integer from 0 to 4611686018427387, UTC microseconds"),
        (_step(kl=math.nan), "kl must be a finite number, got nan"),
        (_step(loss=-math.inf), "loss must be a finite number, got -inf"),
        (_power(busy_share=5.0), "busy_share must be a number from 0 to 1, got 5.0"),
        (_power(source="guess"), "one of nvml-energy, nvml-power, rapl, other, not measured, got 'guess'"),
        (_step(device_id=""), "device_id must be text that is not empty, got ''"),
        (Lease(action="granted", kv_budget_bytes=1, compute_share=1.0, expires_at_us=1), "lease_id must be text"),
        (_power(t0_ns=2), "'power': t1_ns must be at or after t0_ns, got 1"),
        (_power(t1_ns=2**56), "t1_ns must be at most 36028797018963967 ns after t0_ns"),
        (_slice(device_id=None), "'device_slice': device_id must be text that is not empty, got None"),
        (_step(groups=None), "groups must be an integer"),
        (_step(loss="0.5"), "loss must be a finite number, got '0.5'"),
        (_step(device_id=7), "device_id must be text that is not empty, got 7"),
        (Run(action="begun", name="x"), "action must be one of started, ended, failed, got 'begun'"),
        (Run(action="ended", name="\ud800"), "name must be text"),
        (
            Verdict(group_id="g", step=1, verifier="v", reward=1, threshold=1, accepted=1),
            "accepted must be true or false, got 1",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(event, says):
    with pytest.raises(LedgerError) as caught:
        rows.encode(event)
    assert says in str(caught.value)


def test_numpy_scalars_are_taken_as_what_they_are_and_no_event_of_an_unknown_kind():
    values = rows.encode(_step(step=np.int32(3), loss=np.float32(0.25), reward_mean=1))
    assert [type(value) for value in values if value in (3, 0.25)] == [int, float]

    class Lunch(Event):
        kind = "lunch"

    with pytest.raises(LedgerError, match="'lunch' is not a kind of event"):
        rows.encode(Lunch())


@given(st.data())
def test_the_quick_way_takes_what_the_careful_way_takes(any_event, data):
    event = data.draw(any_event)
    first, second = rows.encode(event), rows.encode(event)
    assert [(type(value), repr(value)) for value in first] == [(type(value), repr(value)) for value in second]


def test_a_value_that_does_not_fit_is_named_also_where_its_like_was_seen_before():
    rows.encode(_step())
    with pytest.raises(LedgerError, match="step must be an integer from 0"):
        rows.encode(_step(step=2**63))
    rows.encode(Run(action="ended", name="x"))
    with pytest.raises(LedgerError, match="action must be one of"):
        rows.encode(Run(action="begun", name="x"))
    with pytest.raises(LedgerError, match="name must be text"):
        rows.encode(Run(action="ended", name="\ud800"))


_ODD = [None, "", "x", "\0", "not measured", "granted", 0.5, math.nan, math.inf, -math.inf, True, False]
_ODD += [0, 1, -1, 2**54, 2**55 - 1, 2**55, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), 2**62 // 1000, 2**62 // 1000 + 1]


@pytest.mark.long
@given(st.data())
def test_the_view_of_faults_names_nothing_that_record_takes(any_event, views, data):
    event = data.draw(any_event)
    names = [each.name for each in rows.fields_of(event.kind)]
    odd = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(_ODD), max_size=2))
    values = {name: odd.get(name, getattr(event, name)) for name in names}
    # A kind's own check of itself may come first, at the making.
    refusal = _refusal(lambda: rows.encode(dataclasses.replace(event, **odd)), LedgerError, ValueError, TypeError)
    columns = {name: [value] for name, value in values.items() if value is not None}
    table = pa.table({"run_id": ["r"], **columns, "kind": [event.kind], "provenance": ["live"]})
    if all(table[name].type == rows.schema().field(name).type for name in table.column_names):
        # A file can hold it, and the view judges it.
        whole = pa.concat_tables([rows.schema().empty_table(), table], promote_options="default")
        views.register("given", whole.set_column(0, "writer", pa.array(["w"])).set_column(1, "seq", pa.array([0])))
        faulty = views.sql("SELECT fault FROM faulty_event").fetchall()
        assert not faulty or refusal is not None, f"record says nothing, the view {faulty}"


def _refusal(act, *errors):
    try:
        act()
    except errors as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def views():
    with duckdb.connect() as connection:
        connection.register("given", rows.schema().empty_table())
        connection.execute("CREATE VIEW stored_event AS FROM given")
        connection.execute("CREATE VIEW writer_order AS SELECT 'w' AS writer, 0 AS place")
        connection.execute(f"CREATE VIEW rolled_client_id AS {sources.no_roll_up('rolled_client_id')}")
        connection.execute(f"CREATE VIEW retry AS {sql.read('rollups/retry.sql')}")
        for view in ("event", "device_slice", "faulty_event"):
            connection.execute(sql.view(view))
        yield connection


def test_a_table_of_several_kinds_keeps_its_order_and_has_only_the_columns_that_occur():
    power = Power(t0_ns=0, t1_ns=1, power_mw=1, source="rapl", run_id="q")
    batch = [("step", rows.encode(_step())), ("power", rows.encode(power)), ("step", rows.encode(_step()))]
    table = rows.table("w", 7, "r", "live", batch)
    assert table["seq"].to_pylist() == [7, 8, 9]
    assert table["kind"].to_pylist() == ["step", "power", "step"]
    assert table["run_id"].to_pylist() == ["r", "q", "r"]
    assert table["t0_ns"].to_pylist() == [None, 0, None]
    assert "output_tokens" not in table.column_names
