from __future__ import annotations

import socket

import pytest

from rose.ledger.hosts import remote


@pytest.mark.parametrize("url", ["", "host:1", "http://host:1", "grpc://host", "grpc://host:port"])
def test_what_is_no_url_of_a_gateway_is_named(url):
    with pytest.raises(remote.GatewayError, match="is no gateway's URL; give grpc://HOST:PORT"):
        remote.query(url, "SELECT 1")


def test_a_certificate_needs_an_encrypted_connection(tmp_path):
    with pytest.raises(remote.GatewayError, match=r"use grpc\+tls://"):
        remote.Gateway("grpc://127.0.0.1:1", tls_ca=tmp_path / "cert.pem")
    with pytest.raises(remote.GatewayError, match=r"cannot read .*cert.pem: No such file"):
        remote.Gateway("grpc+tls://127.0.0.1:1", tls_ca=tmp_path / "cert.pem")


def test_a_gateway_that_is_away_is_named():
    with socket.socket() as taken:
        # Bound and not listening: nobody else answers there.
        taken.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(remote.GatewayAwayError, match=f"{url}: .*failed to connect"):
            remote.query(url, "SELECT 1")
