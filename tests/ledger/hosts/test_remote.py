from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from rose.ledger.hosts import gateway, remote


@pytest.mark.parametrize("url", ["", "host:1", "http://host:1", "grpc://host", "grpc://host:port"])
def test_what_is_no_url_of_a_gateway_is_named(url):
    with pytest.raises(remote.GatewayError, match="is not a gateway's URL; give grpc://HOST:PORT"):
        remote.query(url, "SELECT 1")


def test_a_certificate_needs_an_encrypted_connection(tmp_path):
    with pytest.raises(remote.GatewayError, match=r"use grpc\+tls://"):
        remote.Gateway("grpc://127.0.0.1:1", tls_ca=tmp_path / "cert.pem")
    with pytest.raises(remote.GatewayError, match=r"cannot read .*cert.pem: No such file"):
        remote.Gateway("grpc+tls://127.0.0.1:1", tls_ca=tmp_path / "cert.pem")


@pytest.fixture
def taken():
    """A socket that is bound to a port of its own: nobody else answers there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def url_of(taken, scheme="grpc"):
    return f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"


def test_a_gateway_that_is_away_is_named_with_what_to_do(taken):
    url = url_of(taken)
    with pytest.raises(remote.GatewayAwayError) as raised:
        remote.query(url, "SELECT 1")
    assert str(raised.value) == (
        f"no gateway answers at {url}: check the address, and that `rose ledger serve` runs there"
    )


def test_a_host_whose_name_has_no_address_is_named():
    with pytest.raises(
        remote.GatewayAwayError, match=r"no gateway answers at grpc://nowhere.invalid:1: the host's name"
    ):
        remote.query("grpc://nowhere.invalid:1", "SELECT 1")


def test_what_takes_connections_and_says_nothing_is_not_waited_for(taken, monkeypatch):
    taken.listen()
    monkeypatch.setattr(remote, "_CALL_S", 0.2)
    with (
        remote.Gateway(url_of(taken)) as gateway,
        pytest.raises(remote.GatewayAwayError, match="did not answer in time"),
    ):
        gateway.info()


def test_a_server_of_another_protocol_is_told_apart_from_a_gateway(taken):
    taken.listen()

    def answer():
        connection, _ = taken.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server = threading.Thread(target=answer)
    server.start()
    with pytest.raises(remote.GatewayAwayError) as raised:
        remote.query(url_of(taken), "SELECT 1")
    server.join()
    assert str(raised.value).startswith(f"the gateway at {url_of(taken)} cannot be asked now; try again (")
    assert "http1.x server" in str(raised.value)
    assert "last error" not in str(raised.value)


def test_a_gateway_without_tls_says_how_to_write_its_url(tmp_path):
    """gRPC writes lines of its own to stderr there, which no fixture of a process that has it loaded would see."""
    with gateway.serve(tmp_path / "ledger", "127.0.0.1", 0, token=None) as url:
        encrypted = url.replace("grpc:", "grpc+tls:")
        command = [sys.executable, "-m", "rose.cli", "sql", "SELECT 1", "--server", encrypted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = f"rose: the gateway at {encrypted} does not use TLS; write grpc:// instead of grpc+tls://\n"
    assert done.stderr == words
