"""`rose ledger metrics`: the ledger's figures for Prometheus, once or over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rose.ledger.commands.common import LedgerOption, clear_errors, host_and_port, ledger_root, read_token, until_signal
from rose.terminal import echo, echo_data

DEFAULT_LISTEN = "127.0.0.1:9464"
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the bearer token that scrapers must send; needed beyond loopback. Else $ROSE_METRICS_TOKEN.",
    ),
]


def metrics(
    ledger: LedgerOption = None,
    listen: Annotated[
        str | None, typer.Option(help=f"Serve over HTTP at this address, such as {DEFAULT_LISTEN}; else print once.")
    ] = None,
    token_file: TokenFileOption = None,
) -> None:
    """Print the ledger's figures in Prometheus' text format, or serve them until Ctrl-C."""
    with clear_errors():
        root = ledger_root(ledger)
        if listen is None:
            from rose.ledger.upkeep.metrics import text

            echo_data(text(root))
            return
        ended = until_signal()
        with serving(root, listen, token_file) as url:
            echo(f"metrics of {root} at {url} (Ctrl-C ends it)")
            ended.wait()


@contextmanager
def serving(root: Path, listen: str, token_file: Path | None) -> Iterator[str]:
    """Serve metrics while the block runs; yields the URL. Raises LedgerError; fails on an address or a token file."""
    from rose.ledger.upkeep import metrics_server

    host, port = host_and_port(listen, DEFAULT_LISTEN)
    with metrics_server.serve(root, host, port, read_token(token_file, "ROSE_METRICS_TOKEN")) as url:
        yield url
