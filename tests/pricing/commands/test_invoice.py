from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rose.pricing.commands.invoice import invoice_command
from tests.pricing.closing.conftest import BOOK_TOML, begun, ended, slice_, write
from tests.pricing.invoices.conftest import DEARER_DAY_NANO, SECOND_ID, books, unclosed
from tests.pricing.invoices.test_pdf import has_browser

__all__ = ["books", "unclosed"]

app = typer.Typer()
app.command("invoice")(invoice_command)
SECOND = ("--period", "2026-06-03..2026-06-04")


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"ROSE_LEDGER": str(root), "COLUMNS": "200"})


@pytest.fixture
def root(books: Path, tmp_path: Path) -> Path:
    """A copy: what is issued is on record."""
    return Path(shutil.copytree(books, tmp_path / "ledger"))


@pytest.mark.long
def test_the_invoice_of_a_team_is_a_page(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "invoice.html"
    done = run(root, *SECOND, "--team", "research", "--out", str(page))
    assert done.exit_code == 0, done.output
    assert f"{SECOND_ID}-research: $8.64 for research, final" in done.output
    first = page.read_bytes()
    assert b"costs@example.org" in first
    again = run(root, *SECOND, "--team", "research", "--out", str(page))
    assert again.exit_code == 2
    assert "exists; name another file" in again.output
    assert run(root, *SECOND, "--team", "research", "--out", str(page), "--force").exit_code == 0
    assert page.read_bytes() == first


@pytest.mark.long
def test_every_team_has_a_page_in_a_folder_and_all_sum_to_the_close(root: Path, tmp_path: Path) -> None:
    done = run(root, *SECOND, "--all", "--out", str(tmp_path / "all"), "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    made, whole = document["invoices"], document["summary"]
    assert whole["charges_nano"] == whole["close_nano"] == 2 * DEARER_DAY_NANO
    assert whole["total_nano"] == sum(invoice["total_nano"] for invoice in made)
    assert (whole["invoices"], whole["close_id"], whole["invoiced_later_nano"]) == (2, SECOND_ID, -17_280_000_000)
    assert sum(invoice["charges_nano"] for invoice in made) == 2 * DEARER_DAY_NANO
    names = [f"{SECOND_ID}-{team}.html" for team in ("chat", "research")]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == names
    assert [Path(invoice["files"][0]["path"]).name for invoice in made] == names
    texts = run(root, *SECOND, "--all", "--out", str(tmp_path / "all"), "--force").stdout.splitlines()
    assert texts[-3:] == [
        "2 invoices: $207.36 = charges $190.08 + corrections of earlier periods $17.28",
        f"  the close {SECOND_ID}: $190.08",
        "  posted to it since, on the invoices of the period of the posting: -$17.28",
    ]


@pytest.mark.long
def test_what_was_issued_is_listed_and_hours_of_it_are_not_issued_again(root: Path, tmp_path: Path) -> None:
    assert run(root, "--list").stdout == "no final invoice was issued yet\n"
    assert run(root, *SECOND, "--team", "chat", "--json").exit_code == 0
    assert json.loads(run(root, "--list", "--json").stdout) == []
    done = run(root, *SECOND, "--team", "research", "--out", str(tmp_path / "a.html"))
    assert done.exit_code == 0, done.output
    (listed,) = json.loads(run(root, "--list", "--json").stdout)
    assert (listed["number"], listed["team"], listed["total_nano"]) == (f"{SECOND_ID}-research", "research", 8640000000)
    assert listed["period"]["from"].startswith("2026-06-03T00")
    shown = run(root, "--list", "--team", "research").stdout
    assert f"{SECOND_ID}-research" in shown
    assert listed["close_sha256"][:12] in shown
    assert "no final invoice was issued to chat yet" in run(root, "--list", "--team", "chat").stdout
    euros = (*SECOND, "--team", "research", "--currency", "EUR", "--out", str(tmp_path / "b.html"))
    again = run(root, *euros)
    assert again.exit_code == 2
    assert f"{SECOND_ID}-research-EUR of {SECOND_ID}-research" in " ".join(again.output.split())
    assert not (tmp_path / "b.html").exists()
    assert "which the team was issued" in run(root, *euros, "--allow-overlap").output


def test_json_alone_needs_no_file(books: Path) -> None:
    done = run(books, *SECOND, "--team", "chat", "--currency", "EUR", "--json")
    made = json.loads(done.stdout)
    assert (made["currency"], made["files"], made["final"]) == ("EUR", [], True)
    assert made["exchange_rate"]["source"] == "reference rate of the central bank"


def test_a_team_s_name_is_not_obeyed_by_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "book.toml").write_text(BOOK_TOML)
    hour = [*begun(json.dumps({"serving_team": "a\x1b[2Jb"})), slice_(0, serving=3600), *ended(3600)]
    root, out = write(tmp_path / "ledger", hour), str(tmp_path / "all")
    command = ["--period", "2026-06-01", "--all", "--out", out, "-b", str(tmp_path / "book.toml")]
    done = CliRunner().invoke(app, command, env={"ROSE_LEDGER": str(root)}, color=True)
    assert done.exit_code == 0, done.output
    assert "$3.60 for a\\x1b[2Jb, not final" in done.stdout
    assert "\x1b[2J" not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--team TEAM, or --all"),
        (("--team", "chat", "--all"), "--team TEAM, or --all"),
        (("--team", "chat"), "--out FILE.html"),
        (("--team", "chat", "--out", "a.txt"), "an invoice is written as .html"),
        (("--list",), "--list shows what was issued"),
        (("--team", "caht", "--json"), "did you mean 'chat'?"),
        (("--team", "chat", "--currency", "GBP", "--json"), "no rate of exchange for GBP on 2026-06-04"),
    ],
)
def test_what_cannot_be_done_is_said(books: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run(books, *SECOND, *arguments)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_without_a_chromium_nothing_is_written(books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(books, *SECOND, "--team", "chat", "--out", str(tmp_path / "a.html"), "--pdf")
    assert done.exit_code == 2
    assert "--pdf needs a Chromium" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not has_browser(), reason="needs a Chromium on PATH")
def test_a_pdf_lies_beside_the_page(root: Path, tmp_path: Path) -> None:
    done = run(root, *SECOND, "--team", "chat", "--out", str(tmp_path / "a.html"), "--pdf", "--paper", "letter")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert "size: letter" not in (tmp_path / "a.html").read_text()
