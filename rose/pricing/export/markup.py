"""HTML pages made from templates. All text is escaped."""

from collections.abc import Iterable
from typing import Any

import jinja2

from rose.pricing.table import Table
from rose.terminal import visible_lines


def page(title: str, parts: Iterable[Table | str], warnings: Iterable[str] = ()) -> str:
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
    return visible_lines(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
