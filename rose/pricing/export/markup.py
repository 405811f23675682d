"""Pages of HTML from the templates of this folder: every text is escaped, and no character in it is obeyed.

A template that says `{% import "table.html.j2" as tables %}` has `tables.section(table)`, a `Table` with its heading,
terms and notes, and `tables.rows(table)`, the rows alone; `{% include "table.css.j2" %}` is how they look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2

from rose.pricing.export import out
from rose.pricing.export.out import Written
from rose.pricing.table import Table
from rose.terminal import visible_lines


def page(template: str, **values: Any) -> str:
    """Return the page of a template. Raises jinja2.UndefinedError where one of its values is missing."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rose.pricing.export", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    return environment.get_template(template).render(**values)


def write(
    path: Path,
    title: str,
    parts: Iterable[Table | str],
    *,
    totals: Mapping[str, int],
    warnings: Iterable[str] = (),
    force: bool = False,
) -> Written:
    """Write sentences and tables as one page that needs no network and no script; the same parts give the same bytes.

    `totals` are nano-dollars. Raises PricingError for a file that is no .html or cannot be written.
    """
    out.suffix_of(path, (".html",), "a page")
    shown = list(parts)

    def make(temporary: Path) -> tuple[int, Mapping[str, int]]:
        temporary.write_text(page("page.html.j2", title=title, warnings=[*warnings], parts=shown), encoding="utf-8")
        return sum(len(part.rows) for part in shown if isinstance(part, Table)), totals

    return out.write(path, force, make)


def _shown(value: Any) -> Any:
    """Return a text with its direction marks and controls made visible; markup of a template is left as it is."""
    return visible_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
