"""What the pricing commands have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rose.errors import UserError
from rose.ledger.commands.common import unreadable
from rose.ledger.commands.output import visible

BookOption = Annotated[
    str | None,
    typer.Option(
        "--price-book",
        "-b",
        help="A price book TOML file, or `example` for made-up prices; else the adopted one, the run's own, or "
        "ROSE_PRICE_BOOK's.",
    ),
]
UnverifiedOption = Annotated[
    bool, typer.Option("--allow-unverified", help="Price a ledger that does not verify, every figure marked so.")
]


@contextmanager
def clear_errors() -> Iterator[None]:
    """Say on stderr what is wrong, and exit with 2, or 3 for what waits for an approval."""
    try:
        yield
    except UserError as error:
        typer.secho(f"rose: {visible(str(error))}", fg=typer.colors.RED, err=True)
        # 3 where it waits for an approval.
        raise typer.Exit(max(error.exit_code, UserError.exit_code)) from None
    except Exception as error:
        typer.secho(f"rose: {visible(unreadable(error))}", fg=typer.colors.RED, err=True)
        raise typer.Exit(1) from None
