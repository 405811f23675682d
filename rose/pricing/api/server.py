"""Serving the application: on loopback unless a token keeps strangers out."""

from __future__ import annotations

import functools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from rose.http_limits import ACCEPTS, Connections, LimitedProtocol
from rose.ledger.address import check_guarded
from rose.ledger.layout import LedgerError
from rose.pricing.api import app, ledgers
from rose.pricing.api.ledgers import Ledger
from rose.pricing.api.work import Limits


@contextmanager
def serve(
    served: Sequence[Ledger],
    host: str,
    port: int,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    clock: ledgers.Clock = ledgers.now,
) -> Iterator[str]:
    """Answer on `host`:`port` (0: a free one) while the block runs; yields the URL.

    Raises OpenAddressError if other machines could read it without a token, SecretError for a short one, LedgerError if
    the address cannot be used.
    """
    check_guarded(host, token, "--token-file or ROSE_API_TOKEN")
    protocol: Any = functools.partial(LimitedProtocol, limits=Connections())
    config = uvicorn.Config(
        app.application(served, token=token, limits=limits, clock=clock),
        http=protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        backlog=ACCEPTS,
    )
    listening = _listen(host, port)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="api", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises LedgerError for an address that cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=ACCEPTS)
    except OSError as error:
        raise LedgerError(f"cannot listen on {host}:{port}: {error.strerror or error}; give another address") from error
