"""`rose token` manages the named tokens of a controller."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from rose.clock import utc_us
from rose.ledger.commands import common
from rose.terminal import echo, echo_data

token_app = typer.Typer(help="Make, list and end the named tokens of a controller.", no_args_is_help=True)

TokensOption = Annotated[
    Path, typer.Option("--tokens", envvar="ROSE_TOKENS", help="File of the tokens: `gateway.tokens` of the fleet file.")
]
NameArgument = Annotated[str, typer.Argument(help="Name of the token, such as its holder's name.")]


@token_app.command()
def create(
    name: NameArgument,
    tokens: TokensOption,
    append: Annotated[
        list[str] | None,
        typer.Option(metavar="WRITERS", help="Append events as these writers; * and ? are wildcards; may be repeated."),
    ] = None,
    *,
    read: Annotated[bool, typer.Option("--read", help="Read status, runs and the ledger.")] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Play turns.")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="Open runs, publish versions and play turns.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="Allow everything.")] = False,
    team: Annotated[str | None, typer.Option(help="Allow only runs of this team, which pays for them.")] = None,
    run: Annotated[str | None, typer.Option(help="Allow only this run.")] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Time until the token ends, such as 90d. By default it never ends."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Write the token to this new file, which only you can read. By default it is printed."
        ),
    ] = None,
) -> None:
    """Make a token and print it once. The file of tokens has only its hash. A running controller accepts it at once."""
    from rose import tokens as store

    granted = {"read": read, "generate": generate or publish, "publish": publish, "admin": admin}
    scopes = tuple(scope for scope in store.SCOPES if granted.get(scope))
    with common.clear_errors():
        life_s = None if expires is None else common.seconds(expires)
        _give(name, out, lambda: store.create(tokens, name, scopes, tuple(append or ()), life_s, team=team, run=run))


@token_app.command("list")
def list_tokens(tokens: TokensOption, as_json: common.JsonOption = False) -> None:
    """List the tokens and their scopes. `id` is the last part of the SHA-256 of a token."""
    from rose import tokens as store

    with common.clear_errors():
        stored, now_us = store.read(tokens), utc_us()
    documents = [
        {**token.model_dump(exclude={"sha256"}), "id": token.sha256[-4:], "expired": token.expired(now_us)}
        for token in stored
    ]
    if as_json:
        common.print_json(documents)
        return
    rows = []
    for token in stored:
        times = (common.time_text(token.made_us), common.time_text(token.until_us))
        state = "expired" if token.expired(now_us) else "valid"
        rows.append((token.name, token.described, token.sha256[-4:], *times, state))
    common.print_table(["name", "may", "id", "made", "expires", "state"], rows)


@token_app.command()
def revoke(name: NameArgument, tokens: TokensOption) -> None:
    """Make a token invalid now. To replace a token, create and hand out a new token, then revoke the old token."""
    from rose import tokens as store

    with common.clear_errors():
        store.revoke(tokens, name)
    echo(f"{name}: revoked; a running controller refuses it from now on")


def _give(name: str, out: Path | None, make: Callable[[], str]) -> None:
    if out is None:
        echo_data(make())
        return
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        common.fail(f"--out {out} exists, and a secret is never written over another; name a new file")
    except OSError as error:
        common.fail(f"--out {out}: {error.strerror}")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{make()}\n")
    except BaseException:
        out.unlink()
        raise
    echo(f"{name}: its secret is in {out}, which only you can read")
