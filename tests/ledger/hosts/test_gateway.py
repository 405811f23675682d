from __future__ import annotations

import datetime
import ipaddress
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyarrow import flight

from rose.ledger import catalog, rows, segments
from rose.ledger.address import OpenAddressError, is_loopback
from rose.ledger.hosts import gateway, remote
from rose.ledger.hosts.forward import Forwarder
from rose.ledger.layout import LedgerError
from rose.ledger.reading.query import QueryError, query
from rose.ledger.verify import verify
from rose.ledger.writer import LedgerWriter
from rose.secret_file import SecretError

TOKEN = "t0ken-of-enough-characters"
BUSY = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"


@pytest.fixture(scope="module")
def root(tmp_path_factory, lease):
    root = tmp_path_factory.mktemp("gateway") / "ledger"
    with LedgerWriter.open(root, "w", "r") as writer:
        for n in range(5):
            writer.record(lease(lease_id=f"l{n}", step=n))
    return root


@pytest.fixture(scope="module")
def url(root):
    limits = gateway.Limits(rows=4, timeout_s=2.0, memory_gb=0.5, queries=1, wait_s=0.2)
    with gateway.serve(root, "127.0.0.1", 0, token=TOKEN, limits=limits) as url:
        yield url


@pytest.fixture
def client(url):
    with remote.Gateway(url, token=TOKEN) as client:
        yield client


def events(**columns):
    usual = {
        "kind": ["power"] * 2,
        "run_id": ["r"] * 2,
        "provenance": ["live"] * 2,
        "at_us": [1, 2],
        "event_id": ["a", "b"],
        "t0_ns": [0, 1],
        "t1_ns": [1, 2],
        "power_mw": [100, 200],
        "source": ["rapl"] * 2,
    }
    return pa.table(usual | columns)


def test_a_query_gives_what_it_gives_on_the_folder(url, root):
    text = "SELECT lease_id, step, event_time, 1::HUGEINT AS one, uuid() IS NULL AS no FROM lease ORDER BY step LIMIT 3"
    assert remote.query(url, text, token=TOKEN) == query(root, text)


@pytest.mark.long
def test_the_gateway_caps_what_a_client_asks_for(url):
    result = remote.query(url, "FROM lease", token=TOKEN, limit=1000)
    assert (len(result.rows), result.truncated) == (4, True)
    with pytest.raises(QueryError, match="took longer than 2 s"):
        remote.query(url, BUSY, token=TOKEN, timeout_s=500)


@pytest.mark.parametrize(
    "text", ["DROP VIEW lease", "SELECT * FROM read_text('/etc/hostname')", "SELECT colour FROM lease"]
)
def test_a_refused_query_says_what_the_local_one_says(url, root, text):
    with pytest.raises(QueryError) as local:
        query(root, text)
    with pytest.raises(QueryError) as far:
        remote.query(url, text, token=TOKEN)
    assert str(far.value) == str(local.value)


@pytest.mark.parametrize("letter", ["x", "é", "語"])
def test_a_refusal_that_is_longer_than_a_call_can_carry_is_cut(client, letter):
    with pytest.raises(QueryError) as refused:
        client.query(f'FROM "{letter * 30_000}"', limit=1, timeout_s=5)
    text = str(refused.value)
    assert text.startswith(f"'{letter * 100}")
    assert " [...] " in text
    assert text.endswith("daily_verdict ...")
    with pytest.raises(remote.GatewayError, match="is not an action of this gateway"):
        client._act(letter * 30_000 if letter == "x" else "x", b"")


@pytest.mark.long
def test_a_client_without_any_of_this_package_can_query(url):
    class Bearer(flight.ClientMiddlewareFactory):
        def start_call(self, _info):
            return Header()

    class Header(flight.ClientMiddleware):
        def sending_headers(self):
            return {"authorization": f"Bearer {TOKEN}"}

    plain = flight.FlightClient(url, middleware=[Bearer()])
    table = plain.do_get(flight.Ticket(json.dumps({"sql": "SELECT sum(step) AS steps FROM lease"}))).read_all()
    assert table.to_pylist() == [{"steps": 10}]
    listed = {info.descriptor.path[0].decode(): info for info in plain.list_flights()}
    assert tuple(listed) == catalog.VIEWS
    info = plain.get_flight_info(flight.FlightDescriptor.for_path("lease"))
    assert info.schema.names == listed["lease"].schema.names
    assert plain.do_get(info.endpoints[0].ticket).read_all().schema.names == info.schema.names
    assert [action.type for action in plain.list_actions()] == ["info", "segment"]


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "é" * 20])
def test_a_wrong_token_gets_no_answer(url, token):
    with remote.Gateway(url, token=token) as client:
        for call in (client.info, lambda: client.append(events()), lambda: client.send_segment("x", b"")):
            with pytest.raises(remote.GatewayError, match="the token was not"):
                call()
    with pytest.raises(remote.GatewayError, match="the token was not"):
        remote.query(url, "SELECT 1", token=token)


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"[]",
        b"{}",
        b'{"sql": 1}',
        b'{"sql": "FROM lease", "limit": true}',
        b'{"sql": "x", "root": "/"}',
        b'{"sql": "x", "limit": -1}',
        b'{"sql": "x", "limit": 1%b}' % (b"0" * 400),
        b'{"sql": "x", "timeout_s": NaN}',
        b'{"sql": "x", "timeout_s": Infinity}',
        b'{"sql": "x", "timeout_s": -1}',
    ],
)
def test_a_ticket_that_does_not_fit_is_refused(client, ticket):
    with pytest.raises(flight.FlightServerError, match="ticket"):
        client._client.do_get(flight.Ticket(ticket)).read_all()


@pytest.mark.long
def test_other_queries_wait_briefly_then_hear_that_it_is_busy(client, url):
    pool = ThreadPoolExecutor(1)
    first = pool.submit(remote.query, url, BUSY, token=TOKEN, timeout_s=2)
    time.sleep(0.5)
    with pytest.raises(remote.GatewayAwayError, match="busy: 1 queries are running"):
        client.query("SELECT 1", limit=1, timeout_s=1)
    assert isinstance(first.exception(), QueryError)
    pool.shutdown()
    assert client.query("SELECT 1 AS one", limit=1, timeout_s=1).to_pylist() == [{"one": 1}]


def test_appended_events_are_there_when_it_returns_and_count_once(client, root):
    client.append(events())
    client.append(events(event_id=["b", "c"]))
    rows = query(root, "SELECT writer, event_id FROM power ORDER BY event_id").rows
    assert rows == [("gateway", "a"), ("gateway", "b"), ("gateway", "c")]
    assert verify(root).ok


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (events().drop_columns(["event_id"]), "'event_id' is missing"),
        (events(event_id=["a", None]), "empty in some row"),
        (events(kind=["power", "lie"]), "lie"),
        (events(provenance=["live", "dreamt"]), "dreamt"),
        (events(power_mw=["x", "y"]), "power_mw"),
        (events(extra=[1, 2]), "extra"),
        (events(writer=["w", "w"]), "writer"),
    ],
)
def test_what_is_no_event_is_refused_as_a_whole(client, root, table, says):
    # The gateway records of itself when it likes.
    sent = "SELECT count(*) FROM event WHERE kind = 'power'"
    before = query(root, sent).rows
    with pytest.raises(remote.GatewayError, match=says):
        client.append(table)
    assert query(root, sent).rows == before


def test_an_unknown_action_is_named(client):
    with pytest.raises(remote.GatewayError, match="'drop' is not an action"):
        client._act("drop", b"")


@pytest.mark.parametrize(("host", "token", "says"), [("0.0.0.0", None, "give a token"), ("::", None, "give a token")])
def test_other_machines_need_a_token(tmp_path, host, token, says):
    with pytest.raises(OpenAddressError, match=says), gateway.serve(tmp_path / "l", host, 0, token=token):
        pass
    assert not (tmp_path / "l").exists()


def test_a_web_page_is_refused(root, url):
    """gRPC-Web, or what a page sends over HTTP/2."""
    with flight.connect(url) as client:
        for headers, refused in (((b"origin", b"http://evil.example"),), True), ((), False):
            sent = [(b"authorization", f"Bearer {TOKEN}".encode()), *headers]
            options = flight.FlightCallOptions(headers=sent)
            if refused:
                with pytest.raises(flight.FlightUnauthorizedError, match="a web page may ask nothing here"):
                    list(client.list_flights(options=options))
            else:
                assert list(client.list_flights(options=options))


def test_a_short_token_is_refused(tmp_path):
    with (
        pytest.raises(SecretError, match="5 characters and needs 16"),
        gateway.serve(tmp_path / "l", "127.0.0.1", 0, token="short"),
    ):
        pass


def test_an_address_that_is_taken_is_named(root, url):
    port = int(url.rpartition(":")[2])
    with (
        pytest.raises(LedgerError, match=f"cannot listen on 127.0.0.1:{port}"),
        gateway.serve(root, "127.0.0.1", port, token=TOKEN),
    ):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_known(host):
    assert is_loopback(host)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Paths of a certificate for 127.0.0.1 that signs itself, and of its key."""
    x509 = pytest.importorskip("cryptography.x509", reason="makes the certificate of this test")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return folder / "cert.pem", folder / "key.pem"


def test_tls_with_a_certificate_of_one_s_own(tmp_path, certificate):
    cert, key = certificate
    tls = gateway.Tls(cert.read_bytes(), key.read_bytes())
    with gateway.serve(tmp_path / "ledger", "127.0.0.1", 0, token=TOKEN, tls=tls) as url:
        assert url.startswith("grpc+tls://")
        assert remote.query(url, "SELECT 1", token=TOKEN, tls_ca=cert).rows == [(1,)]
        # Neither without the certificate, nor in clear.
        with pytest.raises(remote.GatewayAwayError, match="not trusted; name the one to trust with --tls-ca"):
            remote.query(url, "SELECT 1", token=TOKEN)
        with pytest.raises(remote.GatewayAwayError, match=r"if the gateway uses TLS, write grpc\+tls://"):
            remote.query(url.replace("+tls", ""), "SELECT 1", token=TOKEN)
        with pytest.raises(remote.GatewayAwayError, match="is for another host; use a name that is in it"):
            remote.query(url.replace("127.0.0.1", "localhost"), "SELECT 1", token=TOKEN, tls_ca=cert)


def test_a_host_that_ships_a_damaged_event_goes_on_and_the_gateway_records_it(tmp_path, lease):
    spool = tmp_path / "spool"
    with LedgerWriter.open(spool, "far", "r"):
        pass
    tail = segments.recover(spool, "far")
    values = [
        2**63 - 1 if field.name == "at_us" else value
        for field, value in zip(rows.fields_of("lease"), rows.encode(lease()), strict=True)
    ]
    segments.append(spool, tail, rows.table("far", 0, "r", "live", [("lease", tuple(values))]))
    with LedgerWriter.open(spool, "far", "r") as writer:
        writer.record(lease(lease_id="after"))
    centre = tmp_path / "centre"
    with gateway.serve(centre, "127.0.0.1", 0, token=TOKEN) as url:
        done = Forwarder(spool, url, token=TOKEN).once()
    assert (done.problems, done.waiting, done.events) == ({}, 0, 2)
    assert query(centre, "SELECT lease_id FROM lease").rows == [("after",)]
    assert query(centre, "SELECT count(*) FROM event WHERE kind = 'ledger' AND action = 'faulty'").rows == [(1,)]
    assert query(centre, "SELECT writer, seq, fault LIKE 'at_us must be%', value FROM faulty_event").rows == [
        ("far", 0, True, "9223372036854775807")
    ]
    assert verify(centre).ok


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        (
            "at_us",
            [1, 2**63 - 1],
            "event 'power': at_us must be an integer from 0 to .*, got 9223372036854775807 in row 1",
        ),
        ("power_mw", [1, -1], "power_mw must be an integer from 0 to .*, got -1 in row 1"),
        ("event_id", ["a", ""], "event_id must be text that is not empty, got '' in row 1"),
        ("busy_share", [0.5, float("nan")], "busy_share must be a number from 0 to 1, got nan in row 1"),
    ],
)
def test_a_damaged_event_is_refused_with_field_value_and_row(client, root, column, values, says):
    before = query(root, "SELECT count(*) FROM event").rows
    with pytest.raises(remote.GatewayError, match=says):
        client.append(events(**{column: values}))
    assert query(root, "SELECT count(*) FROM event").rows == before
