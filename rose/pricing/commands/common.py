"""What the pricing commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from rose.errors import UserError
from rose.ledger.layout import LedgerError

BookOption = Annotated[
    str, typer.Option("--price-book", "-b", help="A price book TOML file, or the name of one that comes with ROSE.")
]
UnverifiedOption = Annotated[
    bool, typer.Option("--allow-unverified", help="Price a ledger that does not verify, every figure marked so.")
]


def failed(error: UserError | LedgerError) -> typer.Exit:
    """Say what is wrong on stderr; to be raised."""
    typer.secho(f"rose: {error}", fg=typer.colors.RED, err=True)
    return typer.Exit(UserError.exit_code)
