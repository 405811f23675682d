from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.commands.borrow import borrow_command

app = typer.Typer()
app.command("borrow")(borrow_command)
app.callback()(lambda: None)


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
        "What borrowing added to the bill (m)",
        "Roll-forward by UTC day",
        "useful tokens otherwise",
        "Where borrowing stops paying",
        "What the simulation rests on",
        "USD, ",
    ):
        assert words in text


def test_json_has_whole_nano_dollars_and_a_stamp_on_each_figure(sample_kept: Path) -> None:
    answer = json.loads(output("--only", "price", "--ledger", str(sample_kept), "--json"))
    assert not {"risk", "compare"} & set(answer)
    rows = {row["term"]: row["in all"] for row in answer["price"]["terms"]["rows"]}
    assert rows["m"]["value"] == 62_715_000
    assert (rows["m"]["unit"], rows["m"]["view"], rows["m"]["provenance"]) == ("nano_usd", "marginal", "replay")


def test_what_is_wrong_is_refused(sample: Path, tmp_path: Path) -> None:
    ledger = ("--only", "provision", "--ledger", str(sample))
    assert "no run 'nope'" in output(*ledger, "--run", "nope", code=2)
    (tmp_path / "decisions.csv").write_text("device_id\ns0\n")
    assert "decisions.csv" in output(*ledger, "--decisions", str(tmp_path / "decisions.csv"), code=2)
    head = next(sample.glob("heads/*.json"))
    head.write_text(head.read_text(encoding="utf-8").replace('"', " ", 1), encoding="utf-8")
    assert "does not verify" in output(*ledger, code=2)
