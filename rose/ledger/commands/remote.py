"""`rose ledger serve | forward`: one ledger for many hosts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.file_limit import raise_file_limit
from rose.ledger.address import is_loopback
from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    fail,
    host_and_port,
    ledger_root,
    print_json,
    read_token,
    until_signal,
)
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.hosts.forward import Progress

DEFAULT_LISTEN = "127.0.0.1:8815"
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the gateway's token; else ROSE_LEDGER_TOKEN is it.")
]


def serve(
    ledger: LedgerOption = None,
    listen: Annotated[str, typer.Option(help="Address to listen on; beyond loopback a token is needed.")] = (
        DEFAULT_LISTEN
    ),
    token_file: TokenFileOption = None,
    tokens: Annotated[
        Path | None,
        typer.Option(help="File of named tokens, which `rose ledger token` makes; in place of --token-file."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate of this gateway, PEM: calls are encrypted.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, PEM.")] = None,
    *,
    rows: Annotated[int, typer.Option(min=1, help="Most rows that a query gives.")] = 1_000_000,
    timeout: Annotated[float, typer.Option(min=0.1, help="Most seconds that a query takes.")] = 60.0,
    memory_gb: Annotated[float, typer.Option(min=0.1, help="Most memory that a query takes, GB.")] = 2.0,
    queries: Annotated[int, typer.Option(min=1, help="Most queries at once; others wait, then are refused.")] = 2,
) -> None:
    """Serve a ledger to other hosts until Ctrl-C: they forward their events to it and query it."""
    host, port = host_and_port(listen, DEFAULT_LISTEN)
    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert and --tls-key belong together; give both or neither")
    if tokens is not None and token_file is not None:
        fail("--tokens and --token-file exclude one another; give one of them")
    root = ledger_root(ledger)
    token = read_token(token_file, "ROSE_LEDGER_TOKEN") if tokens is None else None
    raise_file_limit()
    ended = until_signal()
    with clear_errors():
        from rose.ledger.hosts import gateway

        tls = None if tls_cert is None else gateway.Tls(_read(tls_cert, "--tls-cert"), _read(tls_key, "--tls-key"))
        limits = gateway.Limits(rows=rows, timeout_s=timeout, memory_gb=memory_gb, queries=queries)
        with gateway.serve(root, host, port, token=token, tokens_file=tokens, tls=tls, limits=limits) as url:
            if tls is None and not is_loopback(host):
                echo("Without --tls-cert the token and all events travel in clear.", err=True)
            echo(f"ledger {root} at {url} (Ctrl-C ends it)")
            ended.wait()


def forward(
    to: Annotated[str, typer.Option(help="The gateway: grpc://HOST:PORT or grpc+tls://HOST:PORT.")],
    ledger: LedgerOption = None,
    token_file: TokenFileOption = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Certificate, PEM, that the gateway's must come from.")] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Forward what is there, then end.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks for new segments.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Forward a ledger to a gateway, segment by segment, until Ctrl-C; exit code 1 if a writer was refused."""
    if as_json and not once:
        fail("--json is for --once: a forwarder that goes on has no end to report")
    ended = until_signal()
    with clear_errors():
        from rose.ledger.hosts.forward import Forwarder
        from rose.ledger.hosts.remote import TokenFile

        printer = _PassPrinter()
        forwarder = Forwarder(
            ledger_root(ledger),
            to,
            token=read_token(None, "ROSE_LEDGER_TOKEN") if token_file is None else TokenFile(token_file),
            tls_ca=tls_ca,
            every_s=every,
            report=printer,
        )
        if not once:
            forwarder.start()
            ended.wait()
            forwarder.stop()
            return
        progress = forwarder.once()
        forwarder.stop()
    if as_json:
        print_json(dataclasses.asdict(progress))
    else:
        printer(progress)
    if progress.problems:
        raise typer.Exit(1)


class _PassPrinter:
    """Says on stderr what a pass did, if it did something, and what is wrong, if that is new."""

    def __init__(self) -> None:
        self._wrong: Any = {}

    def __call__(self, progress: Progress) -> None:
        lines = []
        if progress.segments:
            kilobytes = progress.sent_bytes / 1000
            lines.append(f"forwarded {progress.segments} segments, {progress.events} events, {kilobytes:.1f} kB")
        wrong = {**progress.problems, **({"": progress.stopped} if progress.stopped else {})}
        if wrong != self._wrong:
            lines += wrong.values()
            if self._wrong and not wrong:
                lines.append("all is well again")
            self._wrong = wrong
        if lines and progress.waiting:
            lines.append(f"{progress.waiting} segments wait, the oldest for {progress.lag_s:.0f} s")
        for line in lines:
            echo(line, err=True)


def _read(path: Path | None, option: str) -> bytes:
    assert path is not None, option
    try:
        return path.read_bytes()
    except OSError as error:
        fail(f"{option} {path}: {error.strerror}")
