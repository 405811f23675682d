"""`rose weights relay`: one fetch for a whole cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose.http_limits import raise_file_limit
from rose.ledger.commands.common import fail, host_and_port, read_token, until_signal
from rose.terminal import echo

weights_app = typer.Typer(no_args_is_help=True)
DEFAULT_LISTEN = "127.0.0.1:8816"


@weights_app.callback()
def weights() -> None:
    """Bring policy versions to engines."""


@weights_app.command()
def relay(
    origin: Annotated[
        str,
        typer.Option(help="Where versions come from: http://HOST:PORT of a trainer or a relay, or s3://BUCKET/FOLDER."),
    ],
    folder: Annotated[Path, typer.Option(help="Folder for what is kept, of this relay alone.")],
    budget_gb: Annotated[float, typer.Option(min=0.001, help="Most that is kept there, GB (1e9 bytes).")] = 100.0,
    listen: Annotated[str, typer.Option(help="Address to listen on; beyond loopback a token is needed.")] = (
        DEFAULT_LISTEN
    ),
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that clients must send; else $ROSE_WEIGHTS_TOKEN.")
    ] = None,
    origin_token_file: Annotated[
        Path | None, typer.Option(help="File with the token for the origin; else $ROSE_WEIGHTS_ORIGIN_TOKEN.")
    ] = None,
    max_mb_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Most that is taken from the origin, MB (1e6 bytes) a second.")
    ] = None,
) -> None:
    """Serve the versions of an origin to a cluster until Ctrl-C, fetching each of their parts once."""
    from rose.errors import UserError
    from rose.runtime.transfer.wire.relay import RelayServer

    raise_file_limit()
    host, port = host_and_port(listen, DEFAULT_LISTEN)
    try:
        server = RelayServer(
            origin,
            folder,
            round(budget_gb * 1e9),
            host,
            port,
            read_token(token_file, "ROSE_WEIGHTS_TOKEN"),
            origin_token=read_token(origin_token_file, "ROSE_WEIGHTS_ORIGIN_TOKEN"),
            max_bytes_per_s=None if max_mb_per_s is None else max_mb_per_s * 1e6,
        )
        with server:
            ended = until_signal()
            echo(f"relay of {origin} at {server.url} (Ctrl-C ends it)")
            ended.wait()
    except UserError as error:
        fail(str(error))
    except OSError as error:
        fail(f"cannot serve {folder} at {listen}: {error.strerror or error}")
