"""Pages of HTML from the templates of this folder: every text that is filled in is escaped.

A template that says `{% import "table.html.j2" as tables %}` has `tables.section(table)`, a `Table` with its heading,
terms and notes, and `tables.rows(table)`, the rows alone; `{% include "table.css.j2" %}` is how they look.
"""

from __future__ import annotations

from typing import Any

import jinja2


def page(template: str, **values: Any) -> str:
    """The page of a template. Raises jinja2.UndefinedError where one of its values is missing."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("rose.pricing.export", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
