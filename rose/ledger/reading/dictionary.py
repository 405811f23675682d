"""The data dictionary: every view and column of a ledger, with its type and meaning."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rose.errors import did_you_mean
from rose.ledger.files.layout import LedgerError


@dataclass(frozen=True, slots=True)
class Column:
    """A view's column with its DuckDB type. `about` names the unit, or is empty."""

    name: str
    type: str
    about: str


@dataclass(frozen=True, slots=True)
class View:
    name: str
    about: str
    columns: tuple[Column, ...]


def read() -> list[View]:
    from rose.ledger.files import catalog, layout

    views = "SELECT view_name, coalesce(comment, '') FROM duckdb_views() WHERE schema_name = 'main'"
    columns = (
        "SELECT table_name, column_name, data_type, coalesce(comment, '') FROM duckdb_columns() "
        "WHERE database_name = 'ledger' AND schema_name = 'main' ORDER BY table_name, column_index"
    )
    with tempfile.TemporaryDirectory() as folder, catalog.connect(layout.create(Path(folder) / "ledger")) as connection:
        about = dict(connection.execute(views).fetchall())
        columns_by_view: dict[str, list[Column]] = {}
        for view, *column in connection.execute(columns).fetchall():
            columns_by_view.setdefault(view, []).append(Column(*column))
    return [View(name, about[name], tuple(columns_by_view[name])) for name in catalog.VIEWS]


def find(views: Sequence[View], name: str) -> View:
    for view in views:
        if view.name == name.lower():
            return view
    raise LedgerError(f"the ledger has no view {name!r}{did_you_mean(name.lower(), [view.name for view in views])}")
