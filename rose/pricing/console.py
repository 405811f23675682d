"""Where the tables of pricing are printed: names and reasons in a ledger or a price book may hold anything."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from rose.ledger.commands.output import visible


class PlainConsole(Console):
    """A terminal that shows control characters of cells and titles written out, and obeys none."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)
