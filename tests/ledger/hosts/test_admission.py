"""Who may do what at a gateway, and what is on record of it: a real server, real clients, real tokens."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from rose.events import Access
from rose.ledger.hosts import gateway, remote, tokens
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.reading.query import QueryError, query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import copied


@pytest.fixture(scope="module")
def made(tmp_path_factory, lease):
    """A folder with the ledger of a centre, the spool of another host, and tokens."""
    folder = tmp_path_factory.mktemp("made")
    for root, names in (("centre", ["local"]), ("spool", ["rack-7.agent", "rack-8.agent"])):
        for name in names:
            with LedgerWriter.open(folder / root, name, "r") as writer:
                writer.record(lease())
    return folder


@pytest.fixture(scope="module")
def secrets(made):
    """Tokens by name, each with one scope."""
    store = made / "tokens.json"
    return {
        "rack-7": tokens.create(store, "rack-7", append=("rack-7.*",)),
        "program": tokens.create(store, "program", append=("gateway",)),
        "finance": tokens.create(store, "finance", read=True),
        "boss": tokens.create(store, "boss", admin=True),
    }


@pytest.fixture
def store(made, secrets, tmp_path):
    """The file of those tokens."""
    return Path(shutil.copy(made / "tokens.json", tmp_path / "tokens.json"))


@pytest.fixture
def root(made, tmp_path):
    return copied(made / "centre", tmp_path / "centre")


@pytest.fixture
def url(root, store, secrets):
    limits = gateway.Limits(rows=100, timeout_s=1.0, memory_gb=0.5)
    with gateway.serve(root, "127.0.0.1", 0, tokens_file=store, limits=limits) as url:
        yield url


@pytest.fixture
def spool(made, tmp_path):
    return copied(made / "spool", tmp_path / "spool")


@contextmanager
def collected(*kinds):
    errors = []
    try:
        yield errors
    except kinds as error:
        errors.append(str(error))


def forward(spool, url, token):
    forwarder = Forwarder(spool, url, token=token)
    done = forwarder.once()
    forwarder.stop()
    return done


def event(**columns):
    usual = {"kind": ["hold"], "run_id": ["r"], "provenance": ["live"], "at_us": [1], "event_id": ["a"]}
    usual |= {"reason": ["regret"], "count": [1], "duration_ns": [1]}
    return pa.table(usual | columns)


def logged(root, where="true", columns="who, action, outcome, statement, result_rows"):
    return query(root, f"SELECT {columns} FROM access WHERE {where} ORDER BY writer, seq").rows


def until_logged(root, where, count):
    deadline = time.monotonic() + 30
    while len(rows := logged(root, where)) < count:
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    return rows


def test_each_scope_opens_what_it_is_for_and_nothing_else(url, root, secrets, spool):
    calls = {
        "read": lambda client: client.query("FROM lease", limit=1, timeout_s=5),
        "info": lambda client: client.info(),
        "views": lambda client: list(client._client.list_flights()),
        "view": lambda client: client._client.get_flight_info(flight.FlightDescriptor.for_path("lease")),
        "put": lambda client: client.append(event()),
        "segment": lambda client: client.send_segment("live/rack-7.agent/000000/x", b""),
        "other": lambda client: client.send_segment("live/rack-8.agent/000000/x", b""),
    }
    open_to = {}
    for name, secret in secrets.items():
        with remote.Gateway(url, token=secret) as client:
            for call, made in calls.items():
                with collected(remote.GatewayError, flight.FlightError) as errors:
                    made(client)
                answer = str(errors)
                # What is no segment is refused, but not for want of a scope.
                assert answer == "[]" or "may not" in answer or "is not the path of a segment" in answer
                if f"{name!r} may not" not in answer:
                    open_to.setdefault(name, set()).add(call)
    assert open_to == {
        # `info` of its own writers alone.
        "rack-7": {"info", "segment"},
        "program": {"info", "put"},
        "finance": {"read", "info", "views", "view"},
        "boss": set(calls),
    }


def test_a_denial_names_the_token_the_scope_and_the_command_and_the_command_helps(url, store, secrets):
    with remote.Gateway(url, token=secrets["rack-7"]) as client:
        with pytest.raises(remote.GatewayError) as denied:
            client.query("FROM lease", limit=1, timeout_s=5)
        assert str(denied.value) == (
            f"{url}: token 'rack-7' may not read: it lacks the scope 'read' for it, and has append rack-7.*. On the "
            "gateway's host `rose ledger token grant rack-7 --read --tokens FILE` gives it"
        )
        with pytest.raises(remote.GatewayError, match=r"grant rack-7 --append rack-8\.agent --tokens FILE"):
            client.send_segment("live/rack-8.agent/000000/x", b"")
        tokens.grant(store, "rack-7", read=True)
        assert client.query("FROM lease", limit=1, timeout_s=5).num_rows == 1


def test_a_host_sees_of_its_own_writers_alone_how_far_they_are(url, root, secrets, spool):
    forward(spool, url, secrets["boss"])
    with remote.Gateway(url, token=secrets["boss"]) as client:
        assert set(client.info()["writers"]) == {"local", "rack-7.agent", "rack-8.agent"}
    with remote.Gateway(url, token=secrets["rack-7"]) as client:
        assert set(client.info()["writers"]) == {"rack-7.agent"}
        assert set(client.info(["rack-7.agent"])["writers"]) == {"rack-7.agent"}
        assert set(client.info(["rack-8.agent", "rack-7.agent"])["writers"]) == {"rack-7.agent"}
    with remote.Gateway(url, token=secrets["finance"]) as client:
        assert set(client.info(["local", "rack-8.agent", "gone"])["writers"]) == {"local", "rack-8.agent"}
    assert [row[:2] for row in logged(root)] == [("boss", "info"), ("finance", "info")]


def test_a_writer_without_a_scope_stays_behind_alone(url, root, secrets, spool):
    done = forward(spool, url, secrets["rack-7"])
    assert list(done.problems) == ["rack-8.agent"]
    assert "token 'rack-7' may not append as 'rack-8.agent'" in done.problems["rack-8.agent"]
    assert query(root, "SELECT writer FROM lease_event ORDER BY writer").rows == [("local",), ("rack-7.agent",)]
    assert until_logged(root, "action = 'append_denied'", 1) == [
        ("rack-7", "append_denied", "refused", "rack-8.agent", None)
    ]
    # Segments are not logged one by one: they name their writer.
    assert logged(root, "action <> 'append_denied'") == []


@pytest.mark.long
def test_every_query_is_on_record_when_its_answer_is_there(url, root, secrets):
    long = "SELECT '" + "x" * 3000 + "'"
    with remote.Gateway(url, token=secrets["finance"]) as client:
        for text in ("FROM lease", "DROP VIEW lease", "SELECT error('x')", long):
            with suppress(QueryError):
                client.query(text, limit=10, timeout_s=5)
            assert logged(root)[-1][3] == text[:1000]
        with pytest.raises(QueryError, match="took longer"):
            client.query("SELECT count(*) FROM range(1000000000000)", limit=10, timeout_s=0.2)
    assert [(who, action, outcome, count) for who, action, outcome, _, count in logged(root)] == [
        ("finance", "query", "ok", 1),
        ("finance", "query", "refused", None),
        ("finance", "query", "failed", None),
        ("finance", "query", "ok", 1),
        ("finance", "query", "timeout", None),
    ]
    sha256, writer, peer, took_ns = logged(root, columns="statement_sha256, writer, peer, duration_ns")[3]
    assert sha256 == hashlib.sha256(long.encode()).hexdigest()
    assert writer == "gateway"
    assert peer.startswith("127.0.0.1:")
    assert took_ns > 0
    assert verify(root).ok


def test_without_a_token_readers_are_logged_by_their_address(tmp_path):
    with gateway.serve(tmp_path / "l", "127.0.0.1", 0) as url:
        remote.query(url, "SELECT 1")
    ((who, peer),) = logged(tmp_path / "l", columns="who, peer")
    assert who == "(no token)"
    assert peer.startswith("127.0.0.1:")


@pytest.mark.long
def test_a_wrong_token_is_on_record_once_a_second_and_never_itself(url, root, secrets):
    guess = "rose_" + "5" * 64
    for _ in range(50):
        with remote.Gateway(url, token=guess) as client, pytest.raises(remote.GatewayError, match="not the right one"):
            client.info()
    found = until_logged(root, "action = 'token_denied'", 1)
    assert {row[:3] for row in found} == {("(unknown token)", "token_denied", "refused")}
    assert len(found) < 50
    assert guess.encode() not in b"".join(path.read_bytes() for path in (root / "live").rglob("*.parquet"))
    assert not query(root, f"SELECT 1 FROM event WHERE to_json(event)::VARCHAR LIKE '%{guess}%'").rows


@pytest.mark.long
def test_an_expired_token_is_named_in_the_log(url, root, store):
    secret = tokens.create(store, "guest", read=True, life_s=1e-6)
    with remote.Gateway(url, token=secret) as client, pytest.raises(remote.GatewayError, match="'guest' expired at"):
        client.query("SELECT 1", limit=1, timeout_s=5)
    assert until_logged(root, "who = 'guest'", 1)[0][:3] == ("guest", "token_denied", "refused")


@pytest.mark.long
def test_nothing_is_read_while_the_log_cannot_be_written(url, root, secrets):
    with remote.Gateway(url, token=secrets["finance"]) as client:
        client.query("SELECT 1", limit=1, timeout_s=5)
        folder = root / "live" / "gateway"
        kept = shutil.copytree(folder, root.with_name("kept"))
        shutil.rmtree(folder)
        folder.write_bytes(b"")
        for _ in range(2):
            with pytest.raises(QueryError, match="writer 'gateway' cannot write to"):
                client.query("SELECT 42", limit=1, timeout_s=5)
        with pytest.raises(flight.FlightServerError, match="cannot write to"):
            list(client._client.list_flights())
        folder.unlink()
        kept.rename(folder)
        deadline = time.monotonic() + 30
        while True:
            try:
                client.query("SELECT 43", limit=1, timeout_s=5)
                break
            except QueryError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
    # The first of the two is on record, though nothing went out; the second was not even run.
    assert [row[3] for row in logged(root)] == ["SELECT 1", "SELECT 42", "SELECT 43"]


@pytest.mark.parametrize("kind", ["ledger", "access"])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_nobody_appends_what_only_the_ledger_writes(url, root, secrets, kind, as_dictionary):
    values = pa.array([kind])
    table = event(kind=values.dictionary_encode() if as_dictionary else values)
    table = table.drop_columns(["reason", "count", "duration_ns"])
    for name, column in {"action": "query", "who": "finance", "outcome": "ok"}.items():
        table = table.append_column(name, pa.array([column]))
    with remote.Gateway(url, token=secrets["program"]) as client, pytest.raises(remote.GatewayError, match="kind"):
        client.append(table)
    assert logged(root) == []


def test_a_segment_with_somebody_s_reads_is_refused(url, root, secrets, tmp_path):
    with LedgerWriter.open(tmp_path / "forged", "rack-7.agent", "r") as writer:
        writer.record(Access(who="finance", action="query", outcome="ok"))
    done = forward(tmp_path / "forged", url, secrets["rack-7"])
    assert "kind 'access' is not one of" in done.problems["rack-7.agent"]
    assert logged(root) == []


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"writers": 1}', b'{"writers": [1]}', b"\xff"])
def test_an_info_that_cannot_be_understood_is_refused(url, secrets, body):
    with remote.Gateway(url, token=secrets["boss"]) as client, pytest.raises(remote.GatewayError, match="info"):
        client._act("info", body)


def test_looks_of_an_older_forwarder_do_not_fill_the_log(url, root, secrets):
    with remote.Gateway(url, token=secrets["boss"]) as client:
        for _ in range(20):
            client.info()
    assert [row[:3] for row in logged(root)] == [("boss", "info", "ok")]


def test_a_look_at_writers_by_name_is_logged_of_an_admin_to_whom_none_is_its_own(url, root, store, secrets):
    with remote.Gateway(url, token=secrets["boss"]) as client:
        assert set(client.info(["local"])["writers"]) == {"local"}
    assert [row[:3] for row in logged(root)] == [("boss", "info", "ok")]
    both = tokens.create(store, "both", append=("local",), admin=True)
    with remote.Gateway(url, token=both) as client:
        assert set(client.info(["local"])["writers"]) == {"local"}
    assert [row[0] for row in logged(root)] == ["boss"]


def test_a_ticket_with_half_a_character_is_refused_and_logged(url, root, secrets):
    with remote.Gateway(url, token=secrets["finance"]) as client:
        ticket = json.dumps({"sql": "SELECT '\ud800'"}).encode()
        with pytest.raises(flight.FlightError):
            client._client.do_get(flight.Ticket(ticket)).read_all()
    ((_, _, outcome, statement, _),) = logged(root)
    assert statement == "SELECT '\\ud800'"
    assert outcome == "refused"
