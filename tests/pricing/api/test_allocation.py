from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose import events
from rose.pricing.api import parameters
from rose.pricing.api.allocation import key
from rose.pricing.api.ledgers import Ledger
from rose.pricing.api.parameters import DIMENSIONS, VIEWS
from rose.pricing.closing.period import Period
from rose.pricing.spend.cost import Question, ask
from tests.pricing.any_ledger import on_any_ledger, priced, root_of
from tests.pricing.api.conftest import HOUR, Serve, Served
from tests.pricing.closing.conftest import BILL_NANO, DAY_NS, T0_NS, begun, ended, fleet_events, write
from tests.pricing.random_ledger import BOOK as AWKWARD_BOOK
from tests.pricing.recorded import Made

TEN_DAYS = "2026-06-01..2026-06-10"


@on_any_ledger
def test_the_parts_of_an_aggregate_sum_to_the_bill_to_the_nano_dollar(made: Made) -> None:
    root, bill_nano = root_of(made), priced(made).total_nano
    book = root.parent / "awkward.toml"
    book.write_text(AWKWARD_BOOK)
    served = Served([Ledger(name="any", root=root, price_book=str(book))])
    for view, aggregate in (("amortized", "team,model"), ("fully_loaded", "pool,task,version")):
        answer = served.get(
            "/allocation", window="2026-02-20..2026-03-10", costBasis=view, aggregate=aggregate, step="1d"
        )
        sums = [sum(line["total_nano"] for line in allocations.values()) for allocations in answer.data]
        assert sum(sums) == bill_nano
        about = answer.json["sets"]
        assert [one["total"].get("total_nano", 0) for one in about] == sums
        assert all(one["bill_nano"] == bill_nano for one in about)


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.text("ab/%2F", max_size=4), min_size=2, max_size=2).map(tuple), unique=True, max_size=20))
def test_no_two_allocations_have_one_name(values: list[tuple[str, ...]]) -> None:
    assert len({key(own) for own in values}) == len(values)


def test_an_allocation_is_the_line_of_rose_cost(asked_half: tuple[Served, Path]) -> None:
    served, folder = asked_half
    root, book = folder / "ledger", str(folder / "book.toml")
    answer = served.get("/allocation", window=TEN_DAYS, aggregate="bucket")
    (allocations,), (about,) = answer.data, answer.json["sets"]
    made = ask(root, Question(period=Period(T0_NS, T0_NS + 10 * DAY_NS), by=("bucket",)), book)
    assert list(allocations) == [line.values[0] for line in made.lines]
    for line in made.lines:
        own = allocations[line.values[0]]
        assert {name: own[name] for name in ("cost_nano", "closed_nano", "corrections_nano", "open_nano")} == {
            "cost_nano": line.cost_nano,
            "closed_nano": line.closed_nano,
            "corrections_nano": line.corrections_nano,
            "open_nano": line.open_nano,
        }
        assert (own["ns"], own["tokens"]) == (line.ns, line.tokens)
        assert own["totalCost"] == f"{line.cost_nano / 1e9:.9f}"
        assert own["properties"] == {"bucket": line.values[0]}
        assert (own["costBasis"], own["provenance"], own["currency"]) == ("amortized", "live", "USD")
        assert own["window"] == {"start": "2026-06-01T00:00:00Z", "end": "2026-06-11T00:00:00Z"}
    assert about["bill_nano"] == made.bill_nano
    assert (about["verified"], about["example_prices"]) == (True, False)
    assert about["closes"] == [{"close_id": close_id, "corrections": 1} for close_id in made.closes]


def test_a_step_makes_a_set_of_each_day_and_accumulate_one_of_all(asked_half: tuple[Served, Path]) -> None:
    served, _ = asked_half
    days = served.get("/allocation", window="2026-06-06..2026-06-09", step="1d", aggregate="pool")
    assert [one["window"]["start"][:10] for one in days.json["sets"]] == [f"2026-06-0{day}" for day in range(6, 10)]
    assert [list(one) for one in days.data] == [["serving"]] * 4
    # The seventh is the last that is closed, corrected to a dearer price.
    assert [one["serving"]["totalCost"] for one in days.data] == ["95.040000000"] * 2 + ["86.400000000"] * 2
    (whole,) = served.get(
        "/allocation", window="2026-06-06..2026-06-09", step="1d", accumulate="true", aggregate="pool"
    ).data
    assert whole["serving"]["total_nano"] == sum(one["serving"]["total_nano"] for one in days.data)
    weeks = served.get(
        "/allocation", window="2026-06-06..2026-06-09", step="week", costBasis="fully_loaded", aggregate="pool"
    )
    assert [one["window"]["end"][:10] for one in weeks.json["sets"]] == ["2026-06-08", "2026-06-10"]
    assert [one["serving"]["totalCost"] for one in weeks.data] == ["190.080000000", "172.800000000"]


def test_days_are_those_of_a_time_zone(asked_half: tuple[Served, Path]) -> None:
    served, _ = asked_half
    for view in ("amortized", "fully_loaded"):
        answer = served.get(
            "/allocation", window="2026-06-06", step="1d", tz="Europe/Berlin", costBasis=view, aggregate="pool"
        )
        (about,) = answer.json["sets"]
        assert about["window"] == {"start": "2026-06-05T22:00:00Z", "end": "2026-06-06T22:00:00Z"}
        assert answer.data[0]["serving"]["totalCost"] == "95.040000000"


def test_a_filter_leaves_a_part_of_the_bill(asked_fleet: Served) -> None:
    answer = asked_fleet.get(
        "/allocation", window=HOUR, aggregate="bucket,task", filter='team:"research"+label[serving_team]:"chat"'
    )
    ((allocations), (about,)) = answer.data[0], answer.json["sets"]
    assert allocations["rollout/maze"]["total_nano"] == 900_000_000
    assert about["bill_nano"] == BILL_NANO > about["total"]["total_nano"]
    labelled = asked_fleet.get("/allocation", window=HOUR, aggregate="label:serving_team")
    assert labelled.data[0]["chat"]["properties"] == {"label:serving_team": "chat"}
    assert labelled.data[0]["chat"]["total_nano"] == BILL_NANO


def test_models_are_those_that_a_run_says(tmp_path: Path, serve: Serve) -> None:
    config = json.dumps({"serving": {"model": "chat-70b"}, "rollout": {"model": "policy-8b"}})
    started, *rest = fleet_events()
    assert isinstance(started, events.Run)
    root = write(
        tmp_path / "ledger",
        [events.Run(action="started", name="by hand", at_us=started.at_us, config_json=config), *rest],
    )
    (allocations,) = serve(root).get("/allocation", window=HOUR, aggregate="model").data
    costs = {name: line["total_nano"] for name, line in allocations.items()}
    # Idle, unreported and metered without a word of what they were for: of no model.
    assert costs == {"chat-70b": 1_800_000_000, "policy-8b": 1_100_000_000, "unallocated": 968_750_000}


def test_live_and_simulated_are_never_in_one_set(fleet: Path, serve: Serve) -> None:
    write(fleet, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    served = serve(fleet)
    answer = served.get("/allocation", window=HOUR)
    assert [one["provenance"] for one in answer.json["sets"]] == ["live", "simulated"]
    assert [sorted(one) for one in answer.data] == [["chat", "research"], ["unallocated"]]
    (only,) = served.get("/allocation", window=HOUR, provenance="simulated").json["sets"]
    assert (only["provenance"], only["total"]["total_nano"]) == ("simulated", 3_600_000_000)


def test_ledgers_are_apart_by_their_names(fleet: Path, closed: Path, serve: Serve) -> None:
    served = serve(f"one={fleet}", closed)
    answer = served.get("/allocation", window=HOUR)
    assert [one["ledger"] for one in answer.json["sets"]] == ["one", "closed"]
    assert {one["bill_nano"] for one in answer.json["sets"]} == {BILL_NANO}
    assert [one["ledger"] for one in served.get("/allocation", window=HOUR, ledger="one").json["sets"]] == ["one"]
    unknown = served.get("/allocation", window=HOUR, ledger="ones")
    assert (unknown.status, unknown.json["code"]) == (404, 404)
    assert "did you mean 'one'" in unknown.json["message"]


def test_a_time_without_charges_has_no_allocation_and_says_why(asked_fleet: Served) -> None:
    served = asked_fleet
    answer = served.get("/allocation", window="2026-07-01", provenance="live")
    assert answer.data == [{}]
    (about,) = answer.json["sets"]
    assert (about["totalCost"], about["bill_nano"], about["currency"]) == (None, None, None)
    assert "nothing is charged" in about["why"]
    # Not even a provenance is known.
    assert served.get("/allocation", window="2026-07-01").data == []


@pytest.mark.parametrize(
    ("window", "start", "end"),
    [
        ("yesterday", "2026-06-02T00", "2026-06-03T00"),
        ("today", "2026-06-03T00", "2026-06-04T00"),
        ("week", "2026-06-01T00", "2026-06-08T00"),
        ("lastweek", "2026-05-25T00", "2026-06-01T00"),
        ("month", "2026-06-01T00", "2026-07-01T00"),
        ("lastmonth", "2026-05-01T00", "2026-06-01T00"),
        ("7d", "2026-05-27T00", "2026-06-03T00"),
        ("24h", "2026-06-02T01", "2026-06-03T01"),
        ("2026-06-01T00:00:00Z,2026-06-01T02:00:00+01:00", "2026-06-01T00", "2026-06-01T01"),
        (f"{T0_NS // 10**9},{T0_NS // 10**9 + 3600}", "2026-06-01T00", "2026-06-01T01"),
        ("2026-W23", "2026-06-01T00", "2026-06-08T00"),
    ],
)
def test_a_window_is_the_time_that_it_says(asked_fleet: Served, window: str, start: str, end: str) -> None:
    (about,) = asked_fleet.get("/allocation", window=window, provenance="live").json["sets"]
    assert about["window"] == {"start": f"{start}:00:00Z", "end": f"{end}:00:00Z"}


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"window": "soon"}, "parameter window is 'soon': write today, yesterday, week"),
        ({"window": "2026-06-01T00:30:00Z,2026-06-02T00:00:00Z"}, "is not a whole hour"),
        ({"window": "2026-06-02T00:00:00Z,2026-06-01T00:00:00Z"}, "ends after it begins"),
        ({"window": "3600,"}, "'' is no time"),
        ({"window": "0,9999997200"}, "longer than 3660 days"),
        ({"tz": "Mars"}, "parameter tz is 'Mars': time zone 'Mars' is not known"),
        ({"aggregate": "namespace"}, "parameter aggregate is 'namespace': there is no 'namespace'"),
        ({"aggregate": "host"}, "devices and not their hosts"),
        ({"aggregate": "team,team"}, "each once"),
        ({"aggregate": ",".join(list(DIMENSIONS)[:5])}, "one to 4 dimensions"),
        ({"aggregate": "label:colour"}, "no run or device has the tag 'colour'"),
        ({"costBasis": "list"}, f"parameter costBasis is 'list': give one of {', '.join(VIEWS)}"),
        ({"costBasis": "fully_loaded", "aggregate": "label:a"}, "known of amortized cost only"),
        ({"step": "5m"}, "parameter step is '5m': a step is 1d"),
        ({"accumulate": "maybe"}, "parameter accumulate is 'maybe'"),
        ({"filter": "team"}, "parameter filter is 'team': write team:"),
        ({"filter": 'team:"a"run:"b"'}, "put a + between"),
        ({"filter": "team:a+team:b"}, "given twice"),
        ({"filter": 'team:"reserch"'}, "has team 'reserch'; did you mean 'research'"),
        ({"filter": 'team:"reserch"', "costBasis": "fully_loaded"}, "has team 'reserch'; did you mean 'research'"),
        ({"filter": "model:m"}, "cannot be filtered by model"),
        ({"provenance": "real"}, "parameter provenance is 'real': 'live', 'replay' or 'simulated'"),
        ({"windows": "7d"}, "there is no parameter 'windows'; did you mean 'window'"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(asked_fleet: Served, given_: dict[str, Any], says: str) -> None:
    answer = asked_fleet.get("/allocation", **({"window": HOUR} | given_))
    assert (answer.status, answer.json["code"]) == (400, 400)
    assert says in answer.json["message"]
    assert set(answer.json) == {"code", "message"}


def test_an_answer_with_too_many_rows_is_refused_whole(asked_fleet: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "ROWS_MAX", 2)
    assert asked_fleet.get("/allocation", window=HOUR, aggregate="team").status == 200
    answer = asked_fleet.get("/allocation", window=HOUR, aggregate="bucket")
    assert answer.status == 400
    assert "parameter aggregate is 'bucket': the answer has more than 2 allocations" in answer.json["message"]
