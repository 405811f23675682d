from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from rose.ledger import catalog
from rose.ledger.layout import LedgerError
from rose.ledger.reading import dictionary
from rose.ledger.writer import LedgerWriter

#: What a column's name says of its unit, and what its comment must then say.
UNITS = {
    r"_ns$|^ns$": "nanosecond",
    r"_us$": "microsecond",
    r"_bytes$": "bytes",
    r"(^|_)(at|time)$|^t[01]$|^day$": "UTC",
    r"_share$": "0 to 1",
    r"_mw$": "milliwatt",
}


@pytest.fixture(scope="module")
def views() -> list[dictionary.View]:
    return dictionary.read()


def test_every_view_and_every_column_is_explained(views):
    assert [view.name for view in views] == list(catalog.VIEWS)
    assert all(view.about for view in views)
    assert [f"{view.name}.{each.name}" for view in views for each in view.columns if not each.about] == []
    for view in views:
        assert set(catalog.comments(view.name)[1]) <= {each.name for each in view.columns}, view.name
    for name, unit in UNITS.items():
        found = [(view.name, each) for view in views for each in view.columns if re.search(name, each.name)]
        assert found
        assert [
            f"{view}.{each.name}" for view, each in found if unit not in each.about.lower().replace("utc", "UTC")
        ] == []


def test_a_ledger_s_own_comments_are_read(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "r"):
        pass
    with duckdb.connect(root / "ledger.duckdb") as connection:
        connection.execute("COMMENT ON COLUMN lease.renewals IS 'Ours.'")
    found = dictionary.read(root)
    assert [view.name for view in found] == list(catalog.VIEWS)
    lease = dictionary.one(found, "LEASE")
    assert next(each for each in lease.columns if each.name == "renewals").about == "Ours."
    assert next(each for each in lease.columns if each.name == "granted_at").type == "TIMESTAMP"
    with pytest.raises(LedgerError, match=r"the ledger has no view 'leases'; did you mean 'lease'"):
        dictionary.one(found, "leases")
    with pytest.raises(LedgerError, match="is not a ledger"):
        dictionary.read(tmp_path)
