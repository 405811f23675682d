from datetime import UTC, datetime
from decimal import Decimal

import pytest

from rose.events import Device, Run
from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.ledger.reading.named import NamedQuery, NamedQueryError, Variable
from tests.ledger.conftest import copied, record

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def query(text="", **variables):
    known = tuple(Variable(name, type_name, "") for name, type_name in variables.items())
    return NamedQuery("asked", "For us: what?", known, "", text)


WINDOW = query(since="TIMESTAMP", until="TIMESTAMP")


@pytest.fixture(scope="module")
def root(tmp_path_factory, lease):
    leases = (lease(lease_id=f"l{n}", at_us=n * 1_000_000) for n in range(5))
    return record(tmp_path_factory.mktemp("named") / "ledger", *leases)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", datetime(2026, 11, 1)),
        ("2026-11-01T13:30", datetime(2026, 11, 1, 13, 30)),
        ("2026-11-01 13:30:00.5Z", datetime(2026, 11, 1, 13, 30, 0, 500_000)),
        ("2026-11-01T13:30+02:00", datetime(2026, 11, 1, 11, 30)),
        ("90s", datetime(2026, 11, 21, 11, 58, 30)),
        ("30m", datetime(2026, 11, 21, 11, 30)),
        ("24h", datetime(2026, 11, 20, 12)),
        ("7d", datetime(2026, 11, 14, 12)),
        ("2w", datetime(2026, 11, 7, 12)),
    ],
)
def test_a_time_is_a_date_a_utc_time_or_how_long_ago(text, expected):
    assert named.values(WINDOW, {"since": text}, now=NOW) == {"since": expected}


def test_what_is_no_time_is_refused_with_field_and_value_and_so_is_an_empty_window():
    for text in ("yesterday", "", "7 d", "-7d", "7y", "2026-13-01", "99999999999999w"):
        with pytest.raises(NamedQueryError, match=rf"^until {text!r} is not a date \(2026-11-01\), .*how long ago"):
            named.values(WINDOW, {"until": text}, now=NOW)
    with pytest.raises(NamedQueryError, match="since 2026-11-20 12:00:00 is not before until 2026-11-20 00:00:00"):
        named.values(WINDOW, {"since": "24h", "until": "2026-11-20"}, now=NOW)


@pytest.mark.parametrize(
    ("type_name", "text", "expected"),
    [
        ("VARCHAR", "it's", "it's"),
        ("BIGINT", "-3", -3),
        ("BIGINT", str(2**63 - 1), 2**63 - 1),
        ("BIGINT", str(2**63), None),
        ("BIGINT", "3.5", None),
        ("DECIMAL(18,9)", "2.35", Decimal("2.35")),
        ("DECIMAL(18,9)", "999999999.999999999", Decimal("999999999.999999999")),
        ("DECIMAL(18,9)", "1000000000", None),
        ("DECIMAL(18,9)", "0.0000000001", None),
        ("DECIMAL(18,9)", "-1", None),
        ("DECIMAL(18,9)", "nan", None),
        ("DECIMAL(18,9)", "two", None),
    ],
)
def test_a_value_has_the_type_of_its_variable(type_name, text, expected):
    asked = query("SELECT getvariable('v')", v=type_name)
    if expected is None:
        with pytest.raises(NamedQueryError, match=rf"^v {text!r} is not a (whole )?number"):
            named.values(asked, {"v": text}, now=NOW)
    else:
        assert named.values(asked, {"v": text}, now=NOW) == {"v": expected}


def test_assignments_are_read_and_checked():
    assert named.assignments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for bad in ("a", "=1", ""):
        with pytest.raises(NamedQueryError, match="does not set a variable; write it as NAME=VALUE"):
            named.assignments([bad])
    with pytest.raises(NamedQueryError, match="a is given twice"):
        named.assignments(["a=1", "a=2"])


def test_the_head_of_a_file_is_read():
    found = named.load("placement_of_turn")
    assert found.question.startswith("For the RL engineer: why was each attempt")
    assert Variable("turn", "BIGINT", "only the turn of this number, from 0.") in found.variables
    assert found.reading.startswith("One row for each attempt, in order")
    assert "text" not in found.as_dict()


def test_a_query_runs_with_bound_values(root):
    text = "SELECT lease_id, getvariable('v') AS v, typeof(getvariable('v')) AS t FROM lease_event ORDER BY lease_id"
    result = named.run(Ledger(root), query(text, v="VARCHAR"), {"v": "'; DROP VIEW lease; --"}, limit=2)
    assert result.columns == ["lease_id", "v", "t"]
    assert result.rows == [(f"l{n}", "'; DROP VIEW lease; --", "VARCHAR") for n in range(2)]
    assert result.truncated
    assert not named.run(Ledger(root), query(text, v="VARCHAR"), {}, limit=5).truncated
    asked = query("SELECT typeof(getvariable('v'))", v="DECIMAL(18,9)")
    assert named.run(Ledger(root), asked, {"v": Decimal("2.35")}).rows == [("DECIMAL(18,9)",)]


def test_nothing_of_what_the_ledger_does_not_know_is_an_error(root, tmp_path):
    root = copied(root, tmp_path / "ledger")
    asked = (("run_id", "run", named.load("run_overview")), ("device_id", "device", named.load("lease_timeline")))
    for variable, _, asked_query in asked:
        rows = named.run(Ledger(root), asked_query, {variable: "nothing-like-it"}).rows
        assert rows == [], "this ledger records no runs and devices"
    device = Device(at_us=1, action="joined", t_ns=1000, device_id="d", pool="serving", device_class="any")
    record(root, Run(at_us=1, action="started", name="r"), device, writer="deployment")
    for variable, view, asked_query in asked:
        with pytest.raises(NamedQueryError, match=f"no {view} with {variable} 'nothing-like-it'"):
            named.run(Ledger(root), asked_query, {variable: "nothing-like-it"})


def test_a_query_that_takes_too_long_is_ended(root):
    endless = query("SELECT count(*) FROM range(100000000000) WHERE range % 3 = 1")
    with pytest.raises(NamedQueryError, match=r"asked took longer than 0\.2 s: narrow it by --since"):
        named.run(Ledger(root), endless, {}, timeout_s=0.2)
