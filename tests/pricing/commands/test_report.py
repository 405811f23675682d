from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from rose import events
from rose.pricing.commands.report import report_command

app = typer.Typer()
app.command("report")(report_command)
app.command("other")(lambda: None)  # with one command alone, its name would not be asked for
runner = CliRunner()


def test_report_prints_tables_and_json(sample_kept: Path) -> None:
    shown = runner.invoke(app, ["report", "--ledger", str(sample_kept)])
    assert shown.exit_code == 0, shown.output
    assert "By what rollout tokens are priced at" in shown.output
    as_json = runner.invoke(app, ["report", "--json", "--run", "run"], env={"ROSE_LEDGER": str(sample_kept)})
    assert (
        json.loads(as_json.output)["report"]["time"]["rows"][-1]["amortized"]["value"] == 4_740_000_000
    )  # devices $4.70, sync $0.04


def test_report_names_what_is_wrong_and_fails(sample_kept: Path, tmp_path: Path) -> None:
    for arguments, says in (
        (["--ledger", str(sample_kept), "--run", "nope"], "no run 'nope'"),
        (["--ledger", str(tmp_path / "nowhere")], "is not a ledger"),
        (["--ledger", str(sample_kept), "--price-book", "nowhere.toml"], "cannot read price book nowhere.toml"),
    ):
        result = runner.invoke(app, ["report", *arguments])
        assert result.exit_code == 2, result.output
        assert says in " ".join(result.output.split())
        assert "Traceback" not in result.output


def test_what_a_ledger_s_names_would_have_a_terminal_do_is_shown_and_not_done(
    write_ledger: Any, sample_made: list[events.Event]
) -> None:
    evil = "\x1b]0;owned\x07\x9b2J [/bold] \u202egnp"
    started, *rest = sample_made
    died = events.Engine(engine_id=evil, action="died", role="rollout", model="m", reason=evil, at_us=started.at_us)
    root = write_ledger([dataclasses.replace(started, name=evil, trace=evil), died, *rest])
    for arguments in (["report"], ["report", "--run", evil]):
        shown = runner.invoke(app, [*arguments, "--ledger", str(root)])
        assert shown.exit_code == (0 if arguments == ["report"] else 2), shown.output
        assert not set(shown.output) & {"\x1b", "\x07", "\x9b", "\u202e"}
        assert "\\x1b" in shown.output
