"""`rose ledger token`: who may call a gateway, and what for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rose.clock import utc_us
from rose.ledger.commands.common import JsonOption, clear_errors, fail, print_json, print_table, seconds
from rose.ledger.commands.jobs import time_text

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
) -> None:
    """Make a token and print it, once: the file holds its hash alone. A running gateway takes it up by itself."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        life_s = None if expires is None else seconds(expires)
        print(store.create(tokens, name, append=tuple(append or ()), read=read, admin=admin, life_s=life_s))


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
    print(f"{token.name}: {token.scopes}")


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
) -> None:
    """Make another secret for a token and print it, once; the one before it works until the grace is over."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        print(store.rotate(tokens, name, seconds(grace)))


@token_app.command()
def revoke(name: NameArgument, tokens: TokensOption) -> None:
    """End a token now, in all its secrets."""
    with clear_errors():
        from rose.ledger.hosts import tokens as store

        store.revoke(tokens, name)
    print(f"{name}: revoked; a running gateway refuses it from now on")
