import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rose.ledger.ledger import Ledger
from rose.pricing.api import questions
from rose.pricing.money import PricingError
from rose.pricing.period import of_month
from rose.pricing.spend import cost
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.saved import saved
from rose.pricing.watch import budget
from tests.pricing.api.conftest import HOUR, NOW_NS, Serve, Served
from tests.pricing.closing.conftest import BILL_NANO, HOUR_NS, begun, ended, write
from tests.pricing.conftest import WEEK_CLOSE_ID


def test_answers_are_those_of_the_commands(quiet_fleet: Served, quiet_folder: Path) -> None:
    root, book = quiet_folder / "ledger", str(quiet_folder / "book.toml")
    now_ns, day = NOW_NS + HOUR_NS, Calendar().period("2026-06-01", 0)

    def answer(path: str, **parameters: Any) -> Any:
        data = quiet_fleet.get(path, **parameters).data
        assert data.pop("ledger") == "ledger"
        return data

    question = cost.question(Ledger(root), now_ns=now_ns, period=HOUR, by=["bucket", "task"], team="research")
    expected = cost.ask(Ledger(root), question, book).to_json()
    assert answer("/cost", period=HOUR, by=["bucket", "task"], team="research") == expected
    assert expected["bill_nano"] == BILL_NANO > expected["total"]["cost_nano"]
    assert answer("/saved", period="2026-06-01") == saved(Ledger(root), day, book).to_json()
    rows = budget.expected(Ledger(root), of_month("2026-06"), book, now_us=now_ns // 1000)
    assert answer("/forecast") == {"month": "2026-06", "rows": [row.to_json() for row in rows]}
    # Its meters do not tell what lending drew, and the book has no power to assume: that term alone is not known.
    assert quiet_fleet.get("/report", run="run").status == 200
    for path, wrong in (("/report", {"run": "rnu"}), ("/forecast", {"month": "11"}), ("/cost", {"close": "abc"})):
        refused = quiet_fleet.get(path, **wrong)
        assert (refused.status, next(iter(wrong.values())) in refused.json["message"]) == (400, True)


def test_a_close_is_answered_by_its_name(half_closed_kept: Path, serve: Serve) -> None:
    served = serve(half_closed_kept / "ledger")
    answer = served.get("/cost", close=WEEK_CLOSE_ID, by="month").data
    assert (answer["closes"], answer["open"]) == ([{"close_id": WEEK_CLOSE_ID, "corrections": 1}], [])
    before = served.get("/cost", close=WEEK_CLOSE_ID, as_of="2026-06-22T12:00Z").data
    assert before["bill_nano"] + answer["total"]["corrections_nano"] == answer["bill_nano"]


def test_what_one_run_saved_is_computed_once(fleet: Path) -> None:
    (ledger,) = questions.named([str(fleet)], "example")
    first = ledger.saved(Calendar().period("2026-06-01", 0))
    ((key, runs),) = ledger.saved_runs.items()
    assert list(runs) == [run.run_id for run in first.runs] == ["run"]
    write(fleet, [*begun(), *ended(3600)], "other")
    ledger.saved(Calendar().period("2026-06-01", 0))
    assert key not in ledger.saved_runs


def test_ledgers_and_provenances_are_apart(fleet: Path, closed_kept: Path, serve: Serve) -> None:
    write(fleet, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    served = serve(f"one={fleet}", f"closed={closed_kept}")
    assert "give the parameter ledger, one of one, closed" in served.get("/cost", period=HOUR).json["message"]
    assert served.get("/cost", period=HOUR, ledger="closed").data["bill_nano"] == BILL_NANO
    assert served.get("/cost", period=HOUR, ledger="one", provenance="simulated").data["bill_nano"] == 3_600_000_000
    mixed = served.get("/cost", period=HOUR, ledger="one")
    assert (mixed.status, "different provenance" in mixed.json["message"]) == (503, True)
    unknown = served.get("/cost", period=HOUR, ledger="ones")
    assert (unknown.status, "did you mean 'one'" in unknown.json["message"]) == (404, True)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"period": "soon"}, "'soon' is not a period"),
        ({"period": "1990..2025"}, "longer than 3660 days"),
        ({"tz": "Mars"}, "time zone 'Mars' is not known"),
        ({"by": ["team", "team"]}, "each once"),
        ({"by": list(cost.BY[:7])}, "parameter by is"),
        ({"tag": "team"}, "tag 'team' is not a tag"),
        ({"team": "reserch", "view": "fully-loaded"}, "has team 'reserch'; did you mean 'research'"),
        ({"provenance": "real"}, "parameter provenance is 'real': 'live', 'replay' or 'simulated'"),
        ({"as_of": "2026-06-03"}, "`as-of` needs a close"),
        ({"windows": "7d"}, "unknown parameter 'windows'"),
    ],
)
def test_what_is_wrong_is_named_with_its_value(quiet_fleet: Served, parameters: dict[str, Any], says: str) -> None:
    answer = quiet_fleet.get("/cost", **({"period": HOUR} | parameters))
    assert (answer.status, answer.json["code"]) == (400, 400)
    assert says in answer.json["message"]
    assert set(answer.json) == {"code", "message"}


def test_a_time_without_charges_is_not_found_and_a_long_answer_refused(
    quiet_fleet: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = quiet_fleet.get("/cost", period="2026-07-01")
    assert (empty.status, "nothing is charged" in empty.json["message"]) == (404, True)
    monkeypatch.setattr(questions, "LINES_MAX", 2)
    assert quiet_fleet.get("/cost", period=HOUR, by="team").status == 200
    answer = quiet_fleet.get("/cost", period=HOUR, by="bucket")
    assert (answer.status, "more than 2 lines" in answer.json["message"]) == (400, True)


_TEXTS = st.text(max_size=30) | st.text("0123456789-,:TZ+.dhWQFY", max_size=30)


@given(_TEXTS)
@example("²d")
@example("9999-12-31T23..0001-01-01")
def test_any_period_is_a_time_or_refused(text: str) -> None:
    for calendar in (Calendar(), Calendar("Asia/Kathmandu")):
        with contextlib.suppress(PricingError):
            period = calendar.period(text, NOW_NS)
            assert 0 < period.to_ns - period.from_ns <= 3660 * 86_400 * 10**9
