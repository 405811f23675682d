"""What comes through a ledger service, by which token, and what is on record of it: a real server, real clients."""

import hashlib
import json
import shutil
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from rose import tokens
from rose.ledger.hosts import remote
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.hosts.remote import ControllerAwayError, ControllerError, RemoteLedger
from rose.ledger.ledger import Ledger
from rose.ledger.reading.query import QueryError, query
from tests.ledger.conftest import ask, copied, record
from tests.ledger.hosts.served import Limits, serve
from tests.runtime.conftest import until

TOKEN = "t0ken-of-enough-characters"
BUSY = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture(scope="module")
def template(tmp_path_factory, lease):
    folder = tmp_path_factory.mktemp("made")
    for root, name in (("centre", "local"), ("spool", "rack-7.agent"), ("spool", "rack-8.agent")):
        record(folder / root, *(lease(lease_id=f"l{n}", step=n) for n in range(5)), writer=name)
    return folder


@pytest.fixture(scope="module")
def secrets(template):
    store = template / "tokens.json"
    return {
        "rack-7": tokens.create(store, "rack-7", (), ("rack-7.*",)),
        "finance": tokens.create(store, "finance", ("read",)),
        "trainer": tokens.create(store, "trainer", ("generate", "publish")),
        "boss": tokens.create(store, "boss", ("admin",)),
    }


@pytest.fixture
def store(template, secrets, tmp_path):
    return Path(shutil.copy(template / "tokens.json", tmp_path / "tokens.json"))


@pytest.fixture
def root(template, tmp_path):
    return copied(template / "centre", tmp_path / "centre")


@pytest.fixture
def url(root, store):
    with serve(root, tokens_file=store) as url:
        yield url


@pytest.fixture
def reader(url, secrets):
    return RemoteLedger(url, token=secrets["finance"])


@pytest.fixture(scope="module")
def open_url(template, secrets, tmp_path_factory):
    root = copied(template / "centre", tmp_path_factory.mktemp("open") / "centre")
    with serve(root, tokens_file=template / "tokens.json", limits=Limits(rows=4, timeout_s=1.0, memory_gb=0.5)) as url:
        yield url


@pytest.fixture
def open_reader(open_url, secrets):
    return RemoteLedger(open_url, token=secrets["finance"])


@pytest.fixture
def spool(template, tmp_path):
    return copied(template / "spool", tmp_path / "spool")


def forward(spool, url, token):
    forwarder = Forwarder(Ledger(spool), url, token, print)
    done = forwarder.once()
    forwarder.stop()
    return done


def logged(root, where="true", columns="who, action, outcome, statement, result_rows"):
    return ask(root, f"SELECT {columns} FROM access WHERE {where} ORDER BY writer, seq")


def until_logged(root, where):
    until(lambda: logged(root, where), 30)
    return logged(root, where)


def answer(url, method, path, body=None, token=None):
    request = urllib.request.Request(f"{url}/ledger/{path}", body, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_query_gives_what_it_gives_on_the_folder(open_reader, root):
    text = "SELECT lease_id, step, event_time, 1::HUGEINT AS one, uuid() IS NULL AS no FROM lease ORDER BY step LIMIT 3"
    assert open_reader.query(text) == query(Ledger(root), text)


def test_the_controller_caps_what_a_client_asks_for(open_reader):
    result = open_reader.query("FROM lease", limit=1000)
    assert (len(result.rows), result.truncated) == (4, True)
    with pytest.raises(QueryError, match="took longer than 1 s"):
        open_reader.query(BUSY, timeout_s=500)


def test_a_request_that_does_not_fit_is_refused_by_its_field(open_url, secrets):
    for body, names in (
        (b"", "the body"),
        (b"[]", "the body"),
        (b"{}", "sql"),
        (b'{"sql": 1}', "sql"),
        (b'{"sql": "x", "root": "/"}', "root"),
        (b'{"sql": "x", "limit": -1}', "limit"),
        (b'{"sql": "x", "limit": 1%b}' % (b"0" * 400), "limit"),
        (b'{"sql": "x", "timeout_s": NaN}', "timeout_s"),
        (b'{"sql": "x", "timeout_s": 1e400}', "timeout_s"),
        (b'{"sql": "\xff"}', "the body"),
        (json.dumps({"sql": "SELECT '\ud800'"}).encode(), "the body"),
    ):
        status, content = answer(open_url, "POST", "query", body, secrets["finance"])
        assert status == 400, body
        assert json.loads(content)["error"].startswith(names)
    assert answer(open_url, "POST", "query", b"x" * (1 << 20) + b"x", secrets["finance"])[0] == 413


def test_prometheus_gets_figures_with_a_token_that_reads(open_url, secrets):
    status, content = answer(open_url, "GET", "metrics", token=secrets["finance"])
    assert (status, b'rose_ledger_events_total{writer="local"} 5.0' in content) == (200, True)
    assert answer(open_url, "GET", "metrics", token=secrets["trainer"])[0] == 403
    assert answer(open_url, "GET", "metrics")[0] == 401


def test_other_queries_wait_briefly_then_hear_that_it_is_busy(root):
    with serve(root, token=TOKEN, limits=Limits(queries=0, wait_s=0.05)) as url:
        with pytest.raises(ControllerAwayError, match="0 queries are running"):
            RemoteLedger(url, token=TOKEN).query("SELECT 1", timeout_s=1)
    assert logged(root, columns="action, outcome, count") == [("query", "refused", 1)]


def test_a_wrong_token_gets_no_answer(open_url):
    for token in (None, "", "wrong", "rose_" + "0" * 64, "\u00e9" * 20):
        ledger = RemoteLedger(open_url, token=token and token.encode().decode("latin-1"))
        for call in (ledger.ends, lambda: ledger.send_segment("x", b""), lambda: ledger.query("SELECT 1")):  # noqa: B023
            with pytest.raises(ControllerError, match="the token is"):
                call()


def test_each_scope_opens_what_it_is_for_and_nothing_else(open_url, secrets):
    calls = {
        "read": lambda ledger: ledger.query("FROM lease"),
        "held": lambda ledger: ledger.ends(),
        "segment": lambda ledger: ledger.send_segment("live/rack-7.agent/000000/x", b""),
        "other": lambda ledger: ledger.send_segment("live/rack-8.agent/000000/x", b""),
    }
    open_to = {}
    for name, secret in secrets.items():
        for call, make in calls.items():
            answer = ""
            try:
                make(RemoteLedger(open_url, token=secret))
            except ControllerError as error:
                answer = str(error)
            # What is no segment is refused, but not for want of a scope.
            assert not answer or "may not" in answer or "is not the path of a segment" in answer
            if "may not" not in answer:
                open_to.setdefault(name, set()).add(call)
    assert open_to == {"rack-7": {"held", "segment"}, "finance": {"read", "held"}, "boss": set(calls)}


def test_a_host_sees_of_its_own_writers_alone_how_far_they_are(url, root, secrets, spool):
    forward(spool, url, secrets["boss"])
    assert set(RemoteLedger(url, token=secrets["boss"]).ends()) == {"local", "rack-7.agent", "rack-8.agent"}
    host = RemoteLedger(url, token=secrets["rack-7"])
    assert set(host.ends()) == {"rack-7.agent"}
    assert set(host.ends(["rack-8.agent", "rack-7.agent"])) == {"rack-7.agent"}
    assert set(RemoteLedger(url, token=secrets["finance"]).ends(["local", "gone"])) == {"local"}
    seen = {row[:2] for row in until_logged(root, "who = 'finance'") + logged(root)}
    assert seen == {("boss", "info"), ("finance", "info")}


def test_a_writer_without_a_scope_stays_behind_alone(url, root, secrets, spool):
    done = forward(spool, url, secrets["rack-7"])
    assert list(done.problems) == ["rack-8.agent"]
    assert "token 'rack-7' may not append as 'rack-8.agent'" in done.problems["rack-8.agent"]
    assert ask(root, "SELECT DISTINCT writer FROM lease_event ORDER BY writer") == [("local",), ("rack-7.agent",)]
    assert until_logged(root, "action = 'append_denied'")[0][:3] == ("rack-7", "append_denied", "refused")
    assert logged(root, "action <> 'append_denied'") == []


def test_every_query_is_on_record_when_its_answer_is_there(reader, root):
    long = "SELECT '" + "x" * 3000 + "'"
    for text in ("FROM lease LIMIT 1", "DROP VIEW lease", "SELECT error('x')", long):
        with suppress(QueryError):
            reader.query(text)
        assert logged(root)[-1][3] == text[:1000]
    with pytest.raises(QueryError, match="took longer"):
        reader.query("SELECT count(*) FROM range(1000000000000)", timeout_s=0.2)
    assert [(who, action, outcome, count) for who, action, outcome, _, count in logged(root)] == [
        ("finance", "query", "ok", 1),
        ("finance", "query", "refused", None),
        ("finance", "query", "failed", None),
        ("finance", "query", "ok", 1),
        ("finance", "query", "timeout", None),
    ]
    sha256, peer, took_ns = logged(root, columns="statement_sha256, peer, duration_ns")[3]
    assert sha256 == hashlib.sha256(long.encode()).hexdigest()
    assert peer.startswith("127.0.0.1:")
    assert took_ns > 0
    assert Ledger(root).verify().doubts == []


def test_a_wrong_token_is_on_record_once_a_second_and_never_itself(url, root):
    guess = "rose_" + "5" * 64
    for _ in range(50):
        with pytest.raises(ControllerError, match="is unknown"):
            RemoteLedger(url, token=guess).ends()
    entries = until_logged(root, "action = 'token_denied'")
    assert {row[:3] for row in entries} == {("(unknown token)", "token_denied", "refused")}
    assert len(entries) < 50
    assert guess.encode() not in b"".join(path.read_bytes() for path in (root / "live").rglob("*.parquet"))


def test_nothing_is_read_while_the_log_cannot_be_written(reader, root):
    reader.query("SELECT 1")
    folder = root / "live" / "gateway"
    kept = shutil.copytree(folder, root.with_name("kept"))
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    for _ in range(2):
        with pytest.raises(QueryError, match="writer 'gateway' cannot write to"):
            reader.query("SELECT 42")
    folder.unlink()
    kept.rename(folder)

    def answers():
        with suppress(QueryError):
            return reader.query("SELECT 43")

    until(answers, 30)
    # The first of the two is on record, though nothing went out; the second was not even run.
    assert [row[3] for row in logged(root)] == ["SELECT 1", "SELECT 42", "SELECT 43"]


def test_what_is_no_url_of_a_controller_is_named():
    for url in ("", "host:1", "grpc://host:1", "http://", "http://host:port", "http://host:1/?a"):
        with pytest.raises(ControllerError, match="is not a controller's URL; give http://HOST:PORT"):
            RemoteLedger(url)


def test_a_controller_that_is_away_or_says_nothing_is_named_and_not_waited_for(monkeypatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ControllerAwayError, match=f"no controller answers at {url}"):
            RemoteLedger(url).query("SELECT 1")
        with pytest.raises(ControllerAwayError, match=r"http://nowhere\.invalid:1"):
            RemoteLedger("http://nowhere.invalid:1").ends()
        silent.listen()
        monkeypatch.setattr(remote, "_CALL_S", 0.2)
        with pytest.raises(ControllerAwayError, match="did not answer in time"):
            RemoteLedger(url).ends()
