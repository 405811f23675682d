from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import typer
from typer.testing import CliRunner

from rose.pricing.commands import price_app, report_command

EXAMPLE = resources.files("rose.pricing.books").joinpath("example.toml").read_text("utf-8")
app = typer.Typer()
app.add_typer(price_app, name="price")
app.command("report")(report_command)
runner = CliRunner()


def test_report_prints_tables_and_json(sample: Path) -> None:
    shown = runner.invoke(app, ["report", "--ledger", str(sample)])
    assert shown.exit_code == 0, shown.output
    assert "Cost per correct answer" in shown.output
    as_json = runner.invoke(app, ["report", "--json", "--run", "run"], env={"ROSE_LEDGER": str(sample)})
    assert json.loads(as_json.output)["amortized"]["total"]["value"] == 4_700_000_000


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


def test_price_check_and_show(tmp_path: Path) -> None:
    path = tmp_path / "book.toml"
    path.write_text(EXAMPLE)
    assert "good" in runner.invoke(app, ["price", "check", str(path)]).output
    path.write_text(EXAMPLE.replace('currency = "USD"', 'currency = "DKK"'))
    wrong = runner.invoke(app, ["price", "check", str(path)])
    assert wrong.exit_code == 2
    assert "currency" in wrong.output
    assert "'DKK'" in wrong.output
    shown = runner.invoke(app, ["price", "show"])
    assert shown.exit_code == 0
    assert "cpu-core" in shown.output
    assert "no market price" in " ".join(shown.output.split())
