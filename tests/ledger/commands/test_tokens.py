"""`rose token` on the command line."""

import json

import pytest
from typer.testing import CliRunner

from rose import cli
from tests.ledger.commands.conftest import check_refused


@pytest.fixture
def store(tmp_path):
    return tmp_path / "tokens.json"


@pytest.fixture
def token(store):
    def run(*arguments):
        done = CliRunner().invoke(cli.app, ["token", *arguments, "--tokens", str(store)])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def test_a_token_is_printed_once_and_never_shown_again(token, store):
    secret = token("create", "rack-7", "--append", "rack-7.*", "--append", "gpu", "--expires", "90d").strip()
    assert secret.startswith("rose_")
    other = token("create", "trainer", "--publish").strip()
    table, text = token("list"), token("list", "--json")
    for shown in (table, text, store.read_text()):
        assert secret not in shown
        assert other not in shown
    assert "append rack-7.*, append gpu" in table
    first, second = json.loads(text)
    assert (first["name"], first["scopes"], first["writers"]) == ("rack-7", ["append"], ["rack-7.*", "gpu"])
    assert first["until_us"] - first["made_us"] == 90 * 86_400_000_000
    assert (second["scopes"], second["expired"], len(second["id"])) == (["generate", "publish"], False, 4)
    token("revoke", "rack-7")
    assert [shown["name"] for shown in json.loads(token("list", "--json"))] == ["trainer"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "x"), "'x' has no scope"),
        (("create", "x", "--read", "--expires", "soon"), "'soon' is not a duration"),
        (("revoke", "x"), "No such file"),
    ],
)
def test_what_cannot_be_carried_out_is_named(store, arguments, says):
    check_refused(CliRunner().invoke(cli.app, ["token", *arguments, "--tokens", str(store)]), says)


def test_a_token_is_written_to_a_new_file_that_only_its_owner_reads(token, store, tmp_path):
    out = tmp_path / "token"
    token("create", "rack-7", "--append", "*", "--out", str(out))
    first, before = out.read_text(), store.read_bytes()
    assert first.startswith("rose_")
    assert out.stat().st_mode & 0o777 == 0o600
    done = CliRunner().invoke(cli.app, ["token", "create", "x", "--read", "--tokens", str(store), "--out", str(out)])
    assert (done.exit_code, "exists" in done.stderr) == (2, True)
    assert (out.read_text(), store.read_bytes()) == (first, before)
    refused = CliRunner().invoke(cli.app, ["token", "create", "x", "--tokens", str(store), "--out", f"{out}2"])
    assert (refused.exit_code, (tmp_path / "token2").exists()) == (2, False)
