"""Pages of HTML from the templates of this folder: every text is escaped, and no character in it is obeyed.

A template that says `{% import "table.html.j2" as tables %}` has `tables.section(table)`, a `Table` with its heading,
terms and notes, and `tables.rows(table)`, the rows alone; `{% include "table.css.j2" %}` is how they look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jinja2

from rose.pricing.table import Table
from rose.terminal import visible_lines


def page(title: str, parts: Iterable[Table | str], warnings: Iterable[str] = ()) -> str:
    """Return sentences and tables as one page that needs no network and no script."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rose.pricing.export", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    return environment.get_template("page.html.j2").render(title=title, warnings=[*warnings], parts=list(parts))


def _shown(value: Any) -> Any:
    """Return a text with its direction marks and controls made visible; markup of a template is left as it is."""
    return visible_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
