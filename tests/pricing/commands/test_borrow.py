from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.commands import borrow_command

app = typer.Typer()
app.command("borrow")(borrow_command)
app.command("other")(lambda: None)  # with one command alone, its name would not be asked for


def output(*arguments: str, code: int = 0) -> str:
    """What `rose borrow` prints, its words without layout."""
    result = CliRunner().invoke(app, ["borrow", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_every_question_is_answered_with_its_stamp(sample_kept: Path) -> None:
    text = output("--ledger", str(sample_kept), "--run", "run")
    for words in (
        "Whether lending harms serving is not known",
        "against dedicated devices: cash saved",
        "What borrowing added to the bill (m)",
        "Roll-forward by UTC day",
        "useful tokens otherwise",
        "Where borrowing stops paying",
        "What the simulation rests on",
        "USD, ",
    ):
        assert words in text


def test_json_has_whole_nano_dollars_and_a_stamp_on_each_figure(sample_kept: Path) -> None:
    made = json.loads(output("--only", "price", "--ledger", str(sample_kept), "--json"))
    assert not {"risk", "compare"} & set(made)
    rows = {row["term"]: row["in all"] for row in made["price"]["terms"]["rows"]}
    assert rows["m"]["value"] == sum(rows[name]["value"] or 0 for name in [*rows][:9])
    assert (rows["m"]["unit"], rows["m"]["view"], rows["m"]["provenance"]) == ("nano_usd", "marginal", "replay")


def test_a_ledger_that_does_not_verify_is_refused_or_marked(sample: Path) -> None:
    segment = next(path for path in sorted(sample.rglob("*.parquet")) if path.name != "schema.parquet")
    head = next(sample.glob("heads/*.json"))
    head.write_text(head.read_text(encoding="utf-8").replace('"', " ", 1), encoding="utf-8")
    assert segment.exists()
    assert "does not verify" in output("--only", "price", "--ledger", str(sample), code=2)
    assert "UNVERIFIED LEDGER" in output("--only", "price", "--ledger", str(sample), "--allow-unverified")


def test_an_unknown_run_is_said(sample_kept: Path) -> None:
    assert "no run 'nope'" in output("--only", "provision", "--ledger", str(sample_kept), "--run", "nope", code=2)
