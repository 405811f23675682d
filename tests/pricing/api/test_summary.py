from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from rose import events
from rose.pricing.borrowing.report import ADDED, CAPACITY, CASH
from rose.pricing.closing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.run import report
from rose.pricing.spend.cost import Question, ask
from tests.pricing.api.conftest import Serve
from tests.pricing.closing.conftest import BILL_NANO, DAY_NS, HOUR_NS, T0_NS, begun, ended, write
from tests.pricing.conftest import sample_events

DAY = "2026-06-01"


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write(tmp_path / "sample", sample_events(), provenance="replay")


def test_the_figures_of_a_period_are_those_of_the_reports(sample: Path, serve: Serve) -> None:
    # The run goes on, and counts where it stands.
    (summary,) = serve(sample, price_book="example", now_ns=T0_NS + 2 * HOUR_NS).get("/summary", window=DAY).data
    figures = summary["figures"]
    values = {name: figure["value"] for name, figure in figures.items()}
    book = pricebook.load("example")
    made = report.build(sample, "run", book).section
    period = Period(T0_NS, T0_NS + DAY_NS)
    lines = ask(sample, Question(period=period, by=("pool", "bucket")), book).lines
    rollout = {line.values[0]: line for line in lines if line.values[1] == "rollout"}
    rollout_nano = sum(line.cost_nano for line in rollout.values())
    assert values["bill"] == made.figure("time", "fleet", "amortized").value
    assert values["rollout_cost"] == rollout_nano == made.figure("time", "rollout", "amortized").value
    assert values["capacity_avoided"] == made.figure("savings", CAPACITY).value
    assert values["borrowing_added"] == made.figure("savings", ADDED).value
    cash = made.figure("savings", CASH).value
    assert (values["cash_saved_if_there_anyway"], values["cash_saved_if_not"]) == (cash, cash)
    # Two of the three accepted answers were audited, and one of them was correct; t2 is stale.
    assert values["answers_accepted"] == 3
    assert values["cost_per_accepted"] == round(Fraction(rollout_nano, 3))
    assert values["cost_per_correct"] == round(Fraction(rollout_nano, 3) * 2)
    assert values["serving_requests"] == 5
    assert values["slo_attainment"] == 1 - made.figure("latency", "all", "missed budget").value == 0.8
    assert values["borrowed_time"] == rollout["serving"].ns
    assert values["share_borrowed"] == rollout["serving"].ns / sum(line.ns for line in rollout.values())
    for name, figure in figures.items():
        assert figure["provenance"] == "replay"
        assert figure["unit"], name
        assert figure["view"], name
        assert figure["example_prices"] is True
        assert (figure["value"] is None) == (figure["why"] is not None), name
    assert figures["bill"]["amount"] == f"{values['bill'] / 1e9:.9f}"
    assert summary["trust"]["sound"] is True


def test_what_is_not_known_is_null_with_the_reason(tmp_path: Path, serve: Serve) -> None:
    root = write(tmp_path / "ledger", [*begun(), *ended(3600)])
    (summary,) = serve(root).get("/summary", window=DAY).data
    figures = summary["figures"]
    for name, why in (
        ("cost_per_accepted", "no answer was accepted"),
        ("cost_per_correct", "no audit knows"),
        ("slo_attainment", "no serving request"),
        ("share_borrowed", "no rollout ran"),
        ("cash_saved_if_not", "not known"),
        ("capacity_avoided", "not known"),
    ):
        assert figures[name]["value"] is None
        assert why in figures[name]["why"], name
    assert figures["bill"]["value"] == 3_600_000_000


def test_provenances_are_summed_up_apart(fleet: Path, serve: Serve) -> None:
    write(fleet, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    served = serve(fleet)
    summaries = served.get("/summary", window=DAY).data
    assert {one["provenance"]: one["figures"]["bill"]["value"] for one in summaries} == {
        "live": BILL_NANO,
        "simulated": 3_600_000_000,
    }
    assert [one["provenance"] for one in served.get("/runs", window=DAY).data] == ["live", "simulated"]


def test_runs_have_what_they_cost_and_answered(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)
    (run,) = served.get("/runs", window=DAY).data
    assert (run["run"], run["team"], run["status"], run["model"]) == ("run", "research", "ended", None)
    assert (run["started"], run["ended"]) == ("2026-06-01T00:00:00Z", "2026-06-01T01:00:00Z")
    assert (run["cost_nano"], run["totalCost"], run["view"]) == (BILL_NANO, "3.868750000", "amortized")
    assert (run["tokens"], run["judged"], run["accepted"], run["audited"]) == (300, 2, 1, 0)
    assert served.get("/runs", window="2026-06-02").data == []


def test_where_all_judged_answers_were_accepted_and_none_was_audited_none_is_known_to_be_correct(
    tmp_path: Path, serve: Serve
) -> None:
    made = [one for one in sample_events() if not isinstance(one, events.Verdict) or one.trajectory_id == "t5"]
    served = serve(write(tmp_path / "ledger", made), price_book="example", now_ns=T0_NS + 2 * HOUR_NS)
    (summary,) = served.get("/summary", window=DAY).data
    assert summary["figures"]["answers_accepted"]["value"] == 1
    assert summary["figures"]["cost_per_correct"]["value"] is None
    (run,) = served.get("/runs", window=DAY).data
    assert (run["judged"], run["accepted"], run["audited"], run["audited_correct"]) == (1, 1, 0, 0)


def test_a_run_without_a_charge_has_no_cost(tmp_path: Path, serve: Serve) -> None:
    root = write(tmp_path / "ledger", begun())
    (run,) = serve(root).get("/runs", window=DAY).data
    assert (run["cost_nano"], run["totalCost"]) == (None, None)
    assert run["why"]


def test_trust_names_what_is_wrong(fleet: Path, serve: Serve) -> None:
    served = serve(fleet)
    (trust,) = served.get("/trust").data
    assert (trust["sound"], trust["problem_count"], trust["problems"]) == (True, 0, [])
    assert trust["verified"]["sound"] is True
    segment = sorted((fleet / "live").rglob("*.parquet"))[0]
    segment.write_bytes(segment.read_bytes()[:-8] + b"12345678")
    # An answer is kept, but for no more than a while; another server has none.
    (trust,) = serve(fleet).get("/trust").data
    assert trust["sound"] is False
    assert trust["problem_count"] == len(trust["problems"]) > 0
    assert segment.name in " ".join(trust["problems"])
