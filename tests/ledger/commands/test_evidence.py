"""`rose ledger receipt` and `verify --against` as commands."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose import cli
from rose.ledger.evidence import receipt
from rose.ledger.files import layout
from rose.ledger.ledger import Ledger
from tests.ledger.evidence import ledgers

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path, monkeypatch):
    _make(tmp_path)
    return _runs_in(tmp_path, monkeypatch)


def _make(folder):
    root = layout.create(folder / "ledger")
    ledgers.write(root, "a", epochs=2)
    ledgers.write(root, "b")


def _runs_in(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *words: CliRunner().invoke(cli.app, ["ledger", *map(str, words)])


def test_a_receipt_is_written_here_and_verified_against(run, tmp_path):
    done = run("receipt", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    path = Path(facts["file"])
    assert re.fullmatch(r"rose-receipt-[0-9a-f]{8}-\d{8}T\d{6}Z\.json", path.name)
    assert (path.parent, facts["events"], facts["writers"]) == (tmp_path, 12, 2)
    ledgers.write(tmp_path / "ledger", "b")
    held = run("verify", "--against", path)
    assert held.exit_code == 0, held.output
    assert "4 events came since the newest" in held.stdout
    assert "The ledger is sound." in held.stdout
    told = json.loads(run("verify", "--against", path, "--key", facts["key"], "--json").stdout)
    assert told["against"]["receipts"][0]["key"] == facts["key"]
    assert (told["against"]["events_since"], told["ok"]) == (4, True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folder")
    _make(folder)
    (folder / "kept.json").write_bytes(receipt.take(Ledger(folder / "ledger")).content())
    ledgers.write(layout.create(folder / "other"), "a")
    return folder


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("verify", "--against", "gone.json"), "cannot read gone.json"),
        (("verify", "--against", "kept.json", "--key", "ab"), "was signed by the key"),
        (("verify", "--key", "ab"), "--key needs receipts: name them with --against"),
        (("verify", "--ledger", "other", "--against", "kept.json"), "kept.json belongs to ledger"),
        (("receipt", "--out", "ledger/receipt.json"), "lies in the ledger"),
        (("receipt", "--out", "kept.json"), "kept.json exists; name a new file"),
    ],
)
def test_what_cannot_be_carried_out_gives_exit_code_2(folder, monkeypatch, words, says):
    before = _documents(folder)
    done = _runs_in(folder, monkeypatch)(*words)
    assert done.exit_code == 2, done.output
    assert says in done.stderr
    if words[0] == "receipt":
        assert _documents(folder) == before


def _documents(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix == ".json")
