from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard import amounts, data
from dashboard.answers import course
from rose.pricing.answers import learned
from rose.pricing.answers.learned import Stretch
from rose.pricing.answers.report.cost_per_correct import C3, cost
from rose.pricing.answers.report.frontier import frontier
from rose.pricing.run.priced import priced


@pytest.fixture
def run(ended: Path) -> data.Run:
    (run,) = data.runs(ended)
    return run


def single(place: int, accepted: int, judged: int = 40) -> Stretch:
    return Stretch(
        first=place, last=place, judged=judged, accepted=accepted, groups=judged, yy=accepted, yx=accepted, xx=judged
    )


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((), "cannot be told**: it takes two steps with judged answers, and there are none"),
        ((3,), "there is one"),
        (
            (4, 8, 20, 30),
            "**The policy learned.** 75.0% (95% 59.8% to 85.8%) of the judged answers were accepted in "
            "the last step of 4, against 10.0% (95% 4.0% to 23.1%) in the first step.",
        ),
        ((30, 20, 8, 4), "**The policy got worse.**"),
        ((10, 30, 30, 12), "the intervals of its beginning and its end overlap"),
    ],
)
def test_whether_it_learned_is_a_sentence(counts: tuple[int, ...], said: str) -> None:
    found = [single(place, count) for place, count in enumerate(counts)]
    assert said in course.sentence(learned.learned(found), found)


def test_points_stand_in_the_middle_of_their_steps() -> None:
    stretch = Stretch(first=10, last=19, judged=4, accepted=1, groups=2, yy=1, yx=2, xx=8)
    (row,) = course.rows([stretch]).to_dicts()
    assert (row["place"], row["named"], row["share"]) == (14.5, "10 to 19", 0.25)
    assert row["low"] < row["share"] < row["high"]


def test_versions_have_the_answers_that_steps_have(ended: Path, run: data.Run) -> None:
    by_step, by_version = (
        learned.stretches(data.in_blocks(ended, "answers/accepted", run, part).to_dicts())
        for part in ("step", "version")
    )
    assert [stretch.accepted for stretch in by_step] == [1 + step * 6 // 8 for step in range(8)]
    assert learned.together(by_step).judged == learned.together(by_version).judged == 64


def test_the_page_has_pricing_s_figures(ended: Path, open_page: Any, values: Any, page_text: Any) -> None:
    app = open_page(ended, "cost_per_correct", axis="versions")
    assert not app.exception
    assert not app.error
    with priced(ended) as priced_run:
        made, ahead = cost(priced_run), frontier(priced_run)
    paid = made.table("lines").row("blended")["per accepted"].value or 0
    count, _ = amounts.scale(paid)
    name = f"{count:,} accepted answers" if count > 1 else "Accepted answer"
    assert values(app)[name] == amounts.amount(int(paid * count))
    c3 = made.figure("c3", C3)
    assert f"C3 is {c3.text}" in page_text(app)
    assert c3.interval_text in page_text(app)
    tables = [frame.value for frame in app.dataframe]
    levers = next(table for table in tables if "lever" in table)
    assert list(levers["lever"]) == [row[0] for row in made.table("levers").rows]
    assert made.text("says") in page_text(app)
    answered = next(table for table in tables if "side" in table)
    assert list(answered["side"]) == [row["side"] for row in ahead.table("answers").records()]
    assert ahead.text("rollouts") in page_text(app)
    assert "Only lake judged the probes" in page_text(app)
    assert "policy version" in page_text(app) or "oldest version" in page_text(app)
