"""`rose ledger token`: who may call a gateway, and what for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rose.clock import utc_us
from rose.ledger.commands.common import JsonOption, clear_errors, fail, print_json, print_table, seconds
from rose.ledger.commands.jobs import time_text
from rose.terminal import echo, echo_data

token_app = typer.Typer(help="Make, list, change and end the tokens of a gateway.", no_args_is_help=True)

TokensOption = Annotated[Path, typer.Option("--tokens", help="File of the tokens, outside the ledger.")]
NameArgument = Annotated[str, typer.Argument(help="Name of the token, such as that of its holder.")]
AppendOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="Let it append as writers with these names; * and ? are wildcards; may be repeated."
    ),
]
ReadOption = Annotated[bool, typer.Option("--read", help="Let it query and list everything.")]
AdminOption = Annotated[bool, typer.Option("--admin", help="Let it do everything.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write it to this new file, which only you can read; else print it.")
]


@token_app.command()
def create(
    name: NameArgument,
    tokens: TokensOption,
    append: AppendOption = None,
    read: ReadOption = False,
    admin: AdminOption = False,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="It ends after this long, such as 90d; else never.")
    ] = None,
    out: OutOption = None,
) -> None:
    """Make a token and give it away once: the tokens' file holds its hash alone. A running gateway takes it up."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        life_s = None if expires is None else seconds(expires)
        _give(
            name,
            out,
            lambda: store.create(tokens, name, append=tuple(append or ()), read=read, admin=admin, life_s=life_s),
        )


@token_app.command()
def grant(
    name: NameArgument,
    tokens: TokensOption,
    append: AppendOption = None,
    read: ReadOption = False,
    admin: AdminOption = False,
) -> None:
    """Let a token do this as well; it stays what it is."""
    if not (append or read or admin):
        fail("nothing is granted; give --append PATTERN, --read or --admin")
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        token = store.grant(tokens, name, append=tuple(append or ()), read=read, admin=admin)
    echo(f"{token.name}: {token.scopes}")


@token_app.command("list")
def list_tokens(tokens: TokensOption, as_json: JsonOption = False) -> None:
    """The tokens and what each may do; `id` ends the SHA-256 of a token, and the token itself is nowhere."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        stored, now_us = store.read(tokens), utc_us()
    if as_json:
        facts = [
            {
                **{"name": token.name, "append": token.append, "read": token.read, "admin": token.admin},
                "state": token.state(now_us),
                "keys": [{**dict(key), "sha256": f"...{key.sha256[-4:]}"} for key in token.keys],
            }
            for token in stored
        ]
        print_json(facts)
        return
    rows = [
        (
            token.name,
            token.scopes,
            key.sha256[-4:],
            time_text(key.made_us),
            time_text(key.until_us),
            token.state(now_us),
        )
        for token in stored
        for key in token.keys[-1:]
    ]
    print_table(["name", "scopes", "id", "made", "expires", "state"], rows)


@token_app.command()
def rotate(
    name: NameArgument,
    tokens: TokensOption,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="How long the former token still works.")] = "24h",
    out: OutOption = None,
) -> None:
    """Make another secret for a token and give it away once; the one before it works until the grace is over."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        grace_s = seconds(grace)
        _give(name, out, lambda: store.rotate(tokens, name, grace_s))


@token_app.command()
def revoke(name: NameArgument, tokens: TokensOption) -> None:
    """End a token now, in all its secrets."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        store.revoke(tokens, name)
    echo(f"{name}: revoked; a running gateway refuses it from now on")


def _give(name: str, out: Path | None, make: Callable[[], str]) -> None:
    """Print the secret that `make` makes, or write it to a new file, which is there before the secret counts."""
    if out is None:
        echo_data(make())
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        fail(f"--out {out} exists, and a secret is never written over another; name a new file")
    except OSError as error:
        fail(f"--out {out}: {error.strerror}")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{make()}\n")
    except BaseException:
        out.unlink()
        raise
    echo(f"{name}: its secret is in {out}, which only you can read")
