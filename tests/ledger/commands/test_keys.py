import json

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.events import LedgerAction
from rose.ledger.files import keys
from tests.ledger.conftest import record


@pytest.fixture
def root(tmp_path):
    return record(tmp_path / "ledger", LedgerAction(action="note"), writer="a")


def run(root, *arguments):
    return CliRunner().invoke(cli.app, ["ledger", *arguments, "--ledger", str(root)])


def test_keys_are_listed_and_endorsed(root, tmp_path, monkeypatch):
    first = keys.load_or_make().public
    with monkeypatch.context() as patch:
        patch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "second.key"))
        second = keys.load_or_make().public
        record(root, LedgerAction(action="note"), writer="b")
        refused = run(root, "endorse", second)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert "may not endorse keys of b" in refused.stderr
    verified = run(root, "verify")
    assert "none: first key of the ledger" in verified.stdout
    assert "none: accepted on first use" in verified.stdout
    assert verified.exit_code == 0
    assert "2 of 2 events are signed, by 2 keys." in verified.stdout
    assert verified.stdout.count(f"key {second}, of b, was taken on first use") == 1
    assert len(json.loads(run(root, "verify", "--json").stdout)["notes"]) == 1
    assert run(root, "endorse", second).stdout == f"{second} is endorsed for b.\n"
    assert json.loads(run(root, "verify", "--json").stdout)["keys"] == [
        {"key": first, "writers": ["a"], "endorsed_by": None, "root": True, "may_endorse": True, "own": True},
        {"key": second, "writers": ["b"], "endorsed_by": first, "root": False, "may_endorse": False, "own": False},
    ]
    assert "first use" not in run(root, "verify").stdout


def test_without_a_key_nothing_is_endorsed_and_none_is_made(root, tmp_path, monkeypatch):
    monkeypatch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "none.key"))
    refused = run(root, "endorse", "0" * 64)
    assert refused.exit_code == 2
    assert "there is no key here to endorse with" in refused.stderr
    assert run(root, "verify").exit_code == 0
    assert not (tmp_path / "none.key").exists()


def test_events_that_nobody_signed_are_counted(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROSE_LEDGER_KEY", str(tmp_path / "file" / "key"))
    root = record(tmp_path / "ledger", LedgerAction(action="note"), writer="a")
    said = run(root, "verify").stdout
    assert "0 of 1 events are signed, by 0 keys. Not signed, or not from the start: a." in said
