from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rose.pricing.commands import borrow_app

app = typer.Typer()
app.add_typer(borrow_app, name="borrow")


def output(*arguments: str, code: int = 0) -> str:
    """What `rose borrow` prints, its words without layout."""
    result = CliRunner().invoke(app, ["borrow", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["price", "--by-lease"], ["What borrowing added to the bill (m)", "By lease", "L4"]),
        (["provision", "--by-lease", "--horizon", "60"], ["Windows of 1 min 00.0 s", "Roll-forward by UTC day"]),
        (["spikes"], ["rose together", "Simulated"]),
        (["risk"], ["Whether lending harms serving is not known", "against dedicated devices: cash saved"]),
        (["compare"], ["useful tokens otherwise", "Where borrowing stops paying", "worth it"]),
    ],
)
def test_each_command_prints_tables_with_their_stamp(sample_kept: Path, command: list[str], words: list[str]) -> None:
    text = output(*command, "--ledger", str(sample_kept), "--run", "run")
    assert all(word in text for word in [*words, "USD, "]), text


def test_json_has_whole_nano_dollars_and_a_stamp_on_each_figure(sample_kept: Path) -> None:
    document = json.loads(output("price", "--ledger", str(sample_kept), "--json"))
    total = document["total"]["in_all"]
    assert total["value"] == sum(term["in_all"]["value"] or 0 for term in document["terms"].values())
    assert (total["unit"], total["view"], total["provenance"]) == ("nano_usd", "marginal", "replay")


def test_a_span_file_is_charged_and_a_wrong_one_refused(sample_kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "spans.csv"
    file.write_text("device_id,from,to\ns0,2026-06-01T00:00:00Z,2026-06-01T00:30:00Z\n", encoding="utf-8")
    assert "avoidable device time" in output("price", "--ledger", str(sample_kept), "--gave-back", str(file))
    file.write_text("device_id,from,to\ns0,soon,later\n", encoding="utf-8")
    assert "line 2: from must be a time" in output(
        "compare", "--ledger", str(sample_kept), "--gave-back", str(file), code=2
    )


def test_a_ledger_that_does_not_verify_is_refused_or_marked(sample: Path) -> None:
    segment = next(path for path in sorted(sample.rglob("*.parquet")) if path.name != "schema.parquet")
    head = next(sample.glob("heads/*.json"))
    head.write_text(head.read_text(encoding="utf-8").replace('"', " ", 1), encoding="utf-8")
    assert segment.exists()
    assert "does not verify" in output("price", "--ledger", str(sample), code=2)
    assert "UNVERIFIED LEDGER" in output("price", "--ledger", str(sample), "--allow-unverified")


def test_an_unknown_run_is_said(sample_kept: Path) -> None:
    assert "no run 'nope'" in output("provision", "--ledger", str(sample_kept), "--run", "nope", code=2)
