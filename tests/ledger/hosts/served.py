import asyncio
import socket
import sys
import threading
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from rose import tokens
from rose.ledger.hosts.routes import routes
from rose.ledger.hosts.service import LedgerService, Limits
from rose.ledger.ledger import Ledger

__all__ = ["Limits", "serve"]


@contextmanager
def serve(root, port=0, *, token=None, tokens_file=None, limits=None):
    """Yields the URL. `token` may do everything; with neither that nor a file, any may."""
    if tokens_file is not None:
        named = tokens.Watched(tokens_file, lambda _: None)
        find = lambda secret: tokens.find(named.tokens, secret)  # noqa: E731
    elif token is not None:
        only = (tokens.of_secret("token", token, ("admin",), ("*",)),)
        find = lambda secret: tokens.find(only, secret)  # noqa: E731
    else:
        anyone = tokens.of_secret("anyone", "", ("admin",), ("*",))
        find = lambda _: anyone  # noqa: E731
    service = LedgerService(Ledger.create(root), find, limits)
    listening = socket.create_server(("127.0.0.1", port))
    application = Starlette(routes=routes(service))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        service.close()


def main():
    """In a process of its own: ROOT PORT; prints the URL."""
    with serve(sys.argv[1], int(sys.argv[2])) as url:
        print(url, flush=True)
        threading.Event().wait()
