"""`rose ledger forward`: one ledger for many hosts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    fail,
    ledger_root,
    print_json,
    read_token,
    until_signal,
)
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.hosts.forward import Progress

TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="File with the controller's token; else ROSE_TOKEN is it.")
]


def forward(
    to: Annotated[str, typer.Option(help="The controller: http://HOST:PORT or https://HOST:PORT.")],
    ledger: LedgerOption = None,
    token_file: TokenFileOption = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Certificate, PEM, that the controller's must come from.")] = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Forward what is there, then end.")] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks for new segments.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Send this ledger's segments to a controller until Ctrl-C; exit code 1 if a writer was refused."""
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
            token=read_token(None, "ROSE_TOKEN") if token_file is None else TokenFile(token_file),
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
