from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.commands.correct import correct_command

app = typer.Typer()
app.command("correct")(correct_command)
app.callback()(lambda: None)
runner = CliRunner()


def output(*arguments: str, fails: bool = False) -> str:
    result = runner.invoke(app, ["correct", *arguments])
    assert result.exit_code == (2 if fails else 0), result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split()) if fails else result.output


def test_show_prints_lines_c3_levers_and_a_breakdown(sample_kept: Path) -> None:
    shown = output("--ledger", str(sample_kept), "--by", "step")
    for title in (
        "By what rollout tokens are priced at",
        "C3 = CPM x R",
        "Which lever moves it most",
        "By step",
        "unallocated",
    ):
        assert title in shown
    assert "[marginal for borrowed, amortized for dedicated; USD, replay, EXAMPLE PRICES," in " ".join(shown.split())


def test_frontier_says_what_it_cannot_tell(sample_kept: Path) -> None:
    shown = output("--only", "frontier", "--ledger", str(sample_kept), "--run", "run")
    assert "threshold with three (kappa3)" in shown
    assert "not enough data to tell" in " ".join(shown.split())
    out = json.loads(output("--only", "frontier", "--ledger", str(sample_kept), "--json"))
    assert {row["priced by"] for row in out["frontier"]["answers"]["rows"]} == {
        "two price lines",
        "three price lines",
        "slack that costs nothing",
    }


def test_verifiers_are_shown_with_names_as_they_are(sample_kept: Path, tmp_path: Path) -> None:
    probes = tmp_path / "probes.csv"
    probes.write_text("probe,verifier,probability,correct\np,[bold]v,0.8,1\nq,[bold]v,0.4,0\n")
    shown = output("--only", "verifiers", "--ledger", str(sample_kept), "--probes", str(probes))
    assert "[bold]v" in shown
    assert "0.8 to 0.9" in shown


def test_what_is_wrong_is_named_and_fails(sample_kept: Path, tmp_path: Path) -> None:
    assert "no run 'nope'" in output("--ledger", str(sample_kept), "--run", "nope", fails=True)
    assert "is not a ledger" in output("--only", "frontier", "--ledger", str(tmp_path / "nowhere"), fails=True)
    missing = str(tmp_path / "nowhere.csv")
    assert "cannot read probes" in output(
        "--only", "verifiers", "--ledger", str(sample_kept), "--probes", missing, fails=True
    )
    assert "'week' is not one of" in output("--ledger", str(sample_kept), "--by", "week", fails=True)
