"""`rose ledger token`, and a gateway that takes up what it does: real processes, and a forwarder that goes on."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from rose import cli
from rose.ledger.hosts import remote
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.reading.query import query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests import programs

#: `rose`, with its arguments; what it says on stderr among the rest.
_ROSE = "import os, sys; os.dup2(1, 2); from rose.cli import main; main()"


@pytest.fixture
def store(tmp_path):
    return tmp_path / "tokens.json"


@pytest.fixture
def token(store):
    """Runs `rose ledger token`, and returns what it prints."""

    def run(*arguments):
        done = CliRunner().invoke(cli.app, ["ledger", "token", *arguments, "--tokens", str(store)])
        assert done.exit_code == 0, done.output
        assert done.stderr == ""
        return done.stdout

    return run


@contextmanager
def serving(root, store):
    listen = ("--listen", "127.0.0.1:0", "--tokens", store)
    with programs.started(_ROSE, "ledger", "serve", "--ledger", root, *listen) as (process, output):
        try:
            yield output.readline().split()[3]
        finally:
            process.kill()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.mark.long
def test_a_token_is_printed_once_and_never_shown_again(token, store):
    secret = token("create", "rack-7", "--append", "rack-7.*", "--append", "gateway", "--expires", "90d").strip()
    assert secret.startswith("rose_")
    other = token("create", "finance", "--read").strip()
    table, text = token("list"), token("list", "--json")
    for shown in (table, text, store.read_text()):
        assert secret not in shown
        assert other not in shown
    assert "append rack-7.*, append gateway" in table
    first, second = json.loads(text)
    assert (first["name"], first["append"], first["read"], first["state"]) == (
        "rack-7",
        ["rack-7.*", "gateway"],
        False,
        "valid",
    )
    assert first["keys"][0]["until_us"] - first["keys"][0]["made_us"] == 90 * 86_400_000_000
    assert second["keys"][0]["sha256"][:3] == "..."
    assert len(second["keys"][0]["sha256"]) == 7
    assert token("grant", "finance", "--admin") == "finance: admin, read\n"
    assert token("rotate", "finance", "--grace", "24h").strip() not in (other, "")
    assert json.loads(token("list", "--json"))[1]["state"].startswith("rotating until 20")
    assert token("revoke", "rack-7").startswith("rack-7: revoked")
    assert json.loads(token("list", "--json"))[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "x"), "could do nothing; give it --append PATTERN, --read or --admin"),
        (("create", "x", "--read", "--expires", "soon"), "'soon' is not a duration"),
        (("grant", "x"), "nothing is granted"),
        (("rotate", "x"), "No such file or directory; `rose ledger token create NAME --tokens FILE` makes one"),
    ],
)
def test_what_cannot_be_carried_out_is_named(store, arguments, says):
    done = CliRunner().invoke(cli.app, ["ledger", "token", *arguments, "--tokens", str(store)])
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_a_gateway_is_given_tokens_in_one_way(tmp_path, store):
    arguments = ["ledger", "serve", "--ledger", str(tmp_path / "l"), "--tokens", str(store), "--token-file", str(store)]
    done = CliRunner().invoke(cli.app, arguments)
    assert (done.exit_code, "exclude one another" in done.stderr) == (2, True)
    done = CliRunner().invoke(cli.app, arguments[:-2])
    assert (done.exit_code, "tokens.json: No such file" in done.stderr) == (2, True)
    assert not (tmp_path / "l").exists()


def test_a_token_is_written_to_a_new_file_that_only_its_owner_reads(token, store, tmp_path):
    out = tmp_path / "token"
    assert token("create", "rack-7", "--append", "*", "--out", str(out)).startswith("rack-7: its secret is in ")
    first = out.read_text()
    assert first.startswith("rose_")
    assert out.stat().st_mode & 0o777 == 0o600
    before = store.read_bytes()
    for words in (("create", "x", "--read"), ("rotate", "rack-7")):
        done = CliRunner().invoke(cli.app, ["ledger", "token", *words, "--tokens", str(store), "--out", str(out)])
        assert (done.exit_code, "exists, and a secret is never written over another" in done.stderr) == (2, True)
    assert (out.read_text(), store.read_bytes()) == (first, before)
    refused = CliRunner().invoke(
        cli.app, ["ledger", "token", "create", "x", "--tokens", str(store), "--out", f"{out}2"]
    )
    assert (refused.exit_code, (tmp_path / "token2").exists()) == (2, False)
    token("rotate", "rack-7", "--out", f"{out}.new")
    assert (tmp_path / "token.new").read_text() not in (first, "")
    assert (tmp_path / "token.new").stat().st_mode & 0o777 == 0o600


@pytest.mark.long
def test_a_forwarder_goes_through_a_rotation_and_a_revocation(tmp_path, store, token, lease):
    """A gateway in a process of its own and a forwarder that never stops; nothing is lost, and none comes twice."""
    centre, spool, file = tmp_path / "centre", tmp_path / "spool", tmp_path / "token"
    file.write_text(token("create", "rack-7", "--append", "rack-7.*"))
    reader = token("create", "finance", "--read").strip()
    passes = []
    with serving(centre, store) as url, LedgerWriter.open(spool, "rack-7.agent", "r") as writer:
        written = iter(range(10**6))

        def record():
            writer.record(lease(event_id=f"e{next(written)}"))

        def arrived():
            return remote.query(url, "SELECT count(*) FROM lease_event", token=reader).rows[0][0]

        forwarder = Forwarder(spool, url, token=remote.TokenFile(file), every_s=0.05, report=passes.append)
        forwarder.start()
        record()
        until(lambda: arrived() == 1)

        # Rotated: the old one still works, then the new one does.
        rotated = token("rotate", "rack-7", "--grace", "1h")
        record()
        until(lambda: arrived() == 2)
        file.write_text(rotated)
        record()
        until(lambda: arrived() == 3)
        assert [done.stopped for done in passes if done.stopped] == []

        # Revoked: it says so, the spool grows, and the next token lets it all through.
        token("revoke", "rack-7")
        record()
        until(lambda: passes[-1].stopped and passes[-1].waiting)
        assert "'rack-7' was revoked at 20" in passes[-1].stopped
        assert "`rose ledger token create rack-7 --tokens FILE` makes a new one" in passes[-1].stopped
        record()
        assert arrived() == 3
        file.write_text(token("create", "rack-7", "--append", "rack-7.*"))
        until(lambda: arrived() == 5)
        until(lambda: passes[-1].stopped is None)
        forwarder.stop()
        until(lambda: remote.query(url, "FROM access WHERE action = 'token_denied'", token=reader).rows)
    assert verify(centre).ok
    counted = "SELECT count(*), count(DISTINCT event_id) FROM stored_event WHERE kind = 'lease'"
    assert query(centre, counted).rows == [(5, 5)]
    denied = "SELECT DISTINCT who, action FROM access WHERE outcome = 'refused'"
    assert query(centre, denied).rows == [("rack-7", "token_denied")]


@pytest.mark.long
def test_a_gateway_says_that_its_tokens_are_damaged_and_goes_on(tmp_path, store, token):
    reader = token("create", "finance", "--read").strip()
    listen = ("--listen", "127.0.0.1:0", "--tokens", store)
    with programs.started(_ROSE, "ledger", "serve", "--ledger", tmp_path / "centre", *listen) as (process, output):
        url = output.readline().split()[3]
        sound = store.read_bytes()
        store.write_bytes(sound[:30])
        assert remote.query(url, "SELECT 1", token=reader).rows == [(1,)]
        assert "damaged" in (said := output.readline())
        assert "Until then the tokens that were read last are valid" in said
        store.write_bytes(sound)
        assert remote.query(url, "SELECT 1", token=reader).rows == [(1,)]
        assert "can be read again" in output.readline()
        process.kill()
