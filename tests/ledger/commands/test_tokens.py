"""`rose token` on the command line, and a forwarder whose token is replaced while it goes on."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger.hosts import remote
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.reading.query import query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests.ledger.hosts.served import serve


@pytest.fixture
def store(tmp_path):
    return tmp_path / "tokens.json"


@pytest.fixture
def token(store):
    """Runs `rose token`, and returns what it prints."""

    def run(*arguments):
        done = CliRunner().invoke(cli.app, ["token", *arguments, "--tokens", str(store)])
        assert done.exit_code == 0, done.output
        return done.stdout

    return run


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


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
        (("create", "x"), "'x' could do nothing"),
        (("create", "x", "--read", "--expires", "soon"), "'soon' is not a duration"),
        (("revoke", "x"), "No such file"),
    ],
)
def test_what_cannot_be_carried_out_is_named(store, arguments, says):
    done = CliRunner().invoke(cli.app, ["token", *arguments, "--tokens", str(store)])
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


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


def test_a_forwarder_goes_through_a_replaced_token(tmp_path, store, token, lease):
    """Nothing is lost, and nothing comes twice."""
    centre, spool, file = tmp_path / "centre", tmp_path / "spool", tmp_path / "token"
    file.write_text(token("create", "rack-7", "--append", "rack-7.*"))
    passes = []
    with serve(centre, tokens_file=store) as url, LedgerWriter.open(spool, "rack-7.agent", "r") as writer:
        forwarder = Forwarder(spool, url, token=remote.TokenFile(file), every_s=0.05, report=passes.append)
        forwarder.start()
        writer.record(lease(event_id="e0"))
        until(lambda: passes and passes[-1].waiting == 0 and not passes[-1].stopped)
        token("revoke", "rack-7")
        writer.record(lease(event_id="e1"))
        until(lambda: passes[-1].stopped and passes[-1].waiting)
        assert "is not known here" in passes[-1].stopped
        file.write_text(token("create", "rack-7.new", "--append", "rack-7.*"))
        until(lambda: not passes[-1].stopped and passes[-1].waiting == 0)
        forwarder.stop()
    assert verify(centre).ok
    counted = "SELECT count(*), count(DISTINCT event_id) FROM stored_event WHERE kind = 'lease'"
    assert query(centre, counted).rows == [(2, 2)]
