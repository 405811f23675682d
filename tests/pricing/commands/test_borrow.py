from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.borrowing.marginal import TERMS
from rose.pricing.commands import borrow_app

app = typer.Typer()
app.add_typer(borrow_app, name="borrow")


def output(*arguments: str, code: int = 0) -> str:
    """What `rose borrow` prints, its words without layout."""
    result = CliRunner().invoke(app, ["borrow", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_every_question_is_answered_with_its_stamp(sample_kept: Path) -> None:
    text = output("--by-lease", "--horizon", "60", "--ledger", str(sample_kept), "--run", "run")
    for words in (
        "Whether lending harms serving is not known",
        "against dedicated devices: cash saved",
        "What borrowing added to the bill (m)",
        "By lease",
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
    assert rows["m"]["value"] == sum(rows[name.replace("_", " ")]["value"] or 0 for name in TERMS)
    assert (rows["m"]["unit"], rows["m"]["view"], rows["m"]["provenance"]) == ("nano_usd", "marginal", "replay")


def test_a_span_file_is_charged_and_a_wrong_one_refused(sample_kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "spans.csv"
    file.write_text("device_id,from,to\ns0,2026-06-01T00:00:00Z,2026-06-01T00:30:00Z\n", encoding="utf-8")
    assert "In the spans given" in output("--only", "price", "--ledger", str(sample_kept), "--gave-back", str(file))
    file.write_text("device_id,from,to\ns0,soon,later\n", encoding="utf-8")
    assert "line 2: from must be a time" in output(
        "--only", "compare", "--ledger", str(sample_kept), "--gave-back", str(file), code=2
    )


def test_a_ledger_that_does_not_verify_is_refused_or_marked(sample: Path) -> None:
    segment = next(path for path in sorted(sample.rglob("*.parquet")) if path.name != "schema.parquet")
    head = next(sample.glob("heads/*.json"))
    head.write_text(head.read_text(encoding="utf-8").replace('"', " ", 1), encoding="utf-8")
    assert segment.exists()
    assert "does not verify" in output("--only", "price", "--ledger", str(sample), code=2)
    assert "UNVERIFIED LEDGER" in output("--only", "price", "--ledger", str(sample), "--allow-unverified")


def test_an_unknown_run_is_said(sample_kept: Path) -> None:
    assert "no run 'nope'" in output("--only", "provision", "--ledger", str(sample_kept), "--run", "nope", code=2)
