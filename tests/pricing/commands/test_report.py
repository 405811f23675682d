from __future__ import annotations

import json
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.commands import report_command

app = typer.Typer()
app.command("report")(report_command)
app.command("other")(lambda: None)  # with one command alone, its name would not be asked for
runner = CliRunner()


def test_report_prints_tables_and_json(sample: Path) -> None:
    shown = runner.invoke(app, ["report", "--ledger", str(sample)])
    assert shown.exit_code == 0, shown.output
    assert "Cost per correct answer" in shown.output
    as_json = runner.invoke(app, ["report", "--json", "--run", "run"], env={"ROSE_LEDGER": str(sample)})
    assert json.loads(as_json.output)["amortized"]["total"]["value"] == 4_740_000_000  # devices $4.70, sync $0.04


def test_report_names_what_is_wrong_and_fails(sample: Path, tmp_path: Path) -> None:
    for arguments, says in (
        (["--ledger", str(sample), "--run", "nope"], "no run 'nope'"),
        (["--ledger", str(tmp_path / "nowhere")], "is not a ledger"),
        (["--ledger", str(sample), "--price-book", "nowhere.toml"], "cannot read price book nowhere.toml"),
    ):
        result = runner.invoke(app, ["report", *arguments])
        assert result.exit_code == 2, result.output
        assert says in " ".join(result.output.split())
        assert "Traceback" not in result.output
