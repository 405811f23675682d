from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from rose.pricing.commands.annotations import note_app, view_app
from rose.pricing.commands.books import books_app
from tests.pricing.closing.conftest import BOOK_TOML

app = typer.Typer()
app.add_typer(note_app, name="note")
app.add_typer(view_app, name="view")
app.add_typer(books_app, name="books")


@pytest.fixture
def run(weeks: Path) -> Any:
    book = weeks.parent / "book.toml"
    book.write_text(BOOK_TOML)

    def invoke(*arguments: str) -> Result:
        env = {"ROSE_LEDGER": str(weeks), "ROSE_PRICE_BOOK": str(book), "COLUMNS": "200"}
        return CliRunner().invoke(app, list(arguments), env=env)

    return invoke


def data(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_notes(run: Any) -> None:
    assert "there is no note yet" in run("note", "list").output
    made = data(run("note", "add", "--date", "2026-06-15", "--text", "[b]demo[/b]", "--who", "ann", "--json"))
    shown = run("note", "list").output
    assert "[b]demo[/b]" in shown
    assert "ann, 2" in shown
    assert "removed the note on 2026-06-15" in run("note", "remove", made["id"]).output
    assert data(run("note", "list", "--json")) == []
    (gone,) = data(run("note", "list", "--removed", "--json"))
    assert gone["removed_by"]
    assert "removed by" in run("note", "list", "--removed").output
    assert run("note", "remove", made["id"]).exit_code == 2


def test_views(run: Any) -> None:
    assert "no view is saved yet" in run("view", "list").output
    assert run("view", "save", "month", "--query", "period=2026-06&team=research").exit_code == 0
    (view,) = data(run("view", "list", "--json"))
    assert (view["name"], view["query"]) == ("month", "period=2026-06&team=research")
    assert "period=2026-06&team=research" in run("view", "list").output
    assert "removed the view month" in run("view", "remove", "month").output
    wrong = run("view", "save", "month", "--query", "http://host/?a=1")
    assert wrong.exit_code == 2
    assert "what follows the `?`" in wrong.output


@pytest.mark.long
def test_an_anomaly_is_judged_and_listed_so(run: Any) -> None:
    day = ("--from", "2026-06-15", "--to", "2026-06-16")
    done = run("books", "judge", "2026-06-15", "idle", "expected", "--reason", "a demo", "--who", "ann")
    assert done.exit_code == 0, done.output
    assert "2026-06-15: idle: expected (ann, " in done.output
    assert "Judged expected (ann, " in " ".join(run("books", "anomalies", *day).output.split())
    found = {one["metric"]: one["judgement"] for one in data(run("books", "anomalies", *day, "--json"))["anomalies"]}
    assert found["idle"]["reason"] == "a demo"
    assert [metric for metric, judgement in found.items() if judgement is None] == ["cost per million useful tokens"]
    done = run("books", "judge", "2026-06-15", "idle", "--withdraw", "--reason", "it was not", "--json")
    assert data(done)["withdrawn"] is True
    assert "Judged" not in run("books", "anomalies", *day).output


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("2026-06-15", "idle"), "give expected, unexpected, wrong as the verdict, or --withdraw"),
        (("2026-06-15", "idle", "wrong", "--withdraw"), "as the verdict, or --withdraw"),
        (("2026-06-15", "idle", "fine"), "'fine' is no verdict"),
        (("2026-06-15", "idle", "wrong"), "reason is empty"),
        (("2026-06-15", "waste", "wrong"), "'waste' of 2026-06-15 does not stand out: what stands out is"),
        (("2026-06-14", "idle", "wrong"), "nothing stands out on that day"),
        (("2026-06-15", "idle", "--withdraw", "--reason", "x"), "nobody judged idle of 2026-06-15"),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_said(run: Any, arguments: tuple[str, ...], says: str) -> None:
    done = run("books", "judge", *arguments)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())
