"""The metrics over HTTP: GET /metrics, on loopback unless a token keeps strangers out."""

from __future__ import annotations

import hmac
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from rose.ledger.address import check_guarded, refusal
from rose.ledger.layout import LedgerError
from rose.ledger.upkeep import metrics

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def application(root: Path | str, token: str | None) -> WSGIApplication:
    """A WSGI application that answers GET /metrics, to those who send `token` if there is one. Raises LedgerError."""
    exposed = make_wsgi_app(metrics.registry(root))

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def refuse(status: str, why: str, *headers: tuple[str, str]) -> Iterable[bytes]:
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers])
            return [f"{why}\n".encode()]

        if environ["REQUEST_METHOD"] != "GET":
            return refuse("405 Method Not Allowed", "only GET is answered", ("Allow", "GET"))
        host, origin = environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN", "")
        if (why := refusal("GET", host, origin, has_token=token is not None)) is not None:
            return refuse("403 Forbidden", why)
        sent = environ.get("HTTP_AUTHORIZATION", "")
        if token is not None and not hmac.compare_digest(sent.encode("latin-1"), f"Bearer {token}".encode()):
            return refuse("401 Unauthorized", "send the bearer token", ("WWW-Authenticate", "Bearer"))
        if environ["PATH_INFO"] != "/metrics":
            return refuse("404 Not Found", "the metrics are at /metrics")
        try:
            answered: Iterable[bytes] = exposed(environ, start_response)
        except LedgerError as error:
            return refuse("503 Service Unavailable", str(error))
        return answered

    return answer


@contextmanager
def serve(root: Path | str, host: str, port: int, token: str | None) -> Iterator[str]:
    """Answer on `host`:`port` (0: a free one) while the block runs; yields the URL.

    Raises LedgerError if `root` is no ledger or if the address cannot be had, OpenAddressError if other machines could
    read it without a token, SecretError for a short one.
    """
    check_guarded(host, token, "--token-file or ROSE_METRICS_TOKEN")
    kind = _Server6 if ":" in host else _Server
    answer = application(root, token)
    try:
        server = make_server(host, port, answer, server_class=kind, handler_class=_Handler)
    except OSError as error:
        raise LedgerError(f"cannot listen on {host}:{port}: {error.strerror}; give another address") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape, none of which keeps the process alive."""

    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    #: A client that says nothing for this long is let go, seconds.
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is nothing to write home about."""
