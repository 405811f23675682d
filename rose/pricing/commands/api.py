"""The command `rose api`, which serves the figures over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from rose.http_limits import raise_file_limit
from rose.ledger.address import is_loopback
from rose.ledger.commands.common import read_token, until_signal
from rose.pricing.commands.common import BookOption, clear_errors
from rose.terminal import echo

DEFAULT_PORT = 9470


def api_command(
    ledgers: Annotated[
        list[str], typer.Argument(help="Folders of ledgers, each as FOLDER or NAME=FOLDER.", metavar="LEDGER...")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free port.")] = DEFAULT_PORT,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the callers' token; by default ROSE_API_TOKEN.")
    ] = None,
    price_book: BookOption = None,
) -> None:
    """Serve the figures of ledgers until Ctrl-C, without writing to them. Every request prints a line on stderr."""
    token = read_token(token_file, "ROSE_API_TOKEN")
    raise_file_limit()
    ended = until_signal()
    with clear_errors():
        from rose.pricing.api import app
        from rose.pricing.api.questions import named
        from rose.pricing.price_books import pricebook

        if price_book is not None:
            # Refuse a wrong book before the first request.
            pricebook.load(price_book)
        served = named(ledgers, price_book)
        with app.serve(served, host, port, token=token) as url:
            if not is_loopback(host):
                echo("The token and all figures travel unencrypted: put a proxy with TLS in front.", err=True)
            names = ", ".join(ledger.name for ledger in served)
            echo(f"{names} at {url} (Ctrl-C ends it)")
            ended.wait()
