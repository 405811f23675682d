import re

import pytest

from rose.ledger.files import catalog
from rose.ledger.files.layout import LedgerError
from rose.ledger.reading import dictionary

UNITS = {
    r"_ns$|^ns$": "nanosecond",
    r"_us$": "microsecond",
    r"_bytes$": "bytes",
    r"(^|_)(at|time)$|^t[01]$|^day$": "UTC",
    r"_share$": "0 to 1",
    r"_mw$": "milliwatt",
}


@pytest.fixture(scope="module")
def views():
    return dictionary.read()


def test_every_view_and_every_column_is_explained(views):
    assert [view.name for view in views] == list(catalog.VIEWS)
    assert all(view.about for view in views)
    assert [f"{view.name}.{each.name}" for view in views for each in view.columns if not each.about] == []
    for view in views:
        shared = catalog.comments("event").items() if view.name != "event" else ()
        documented = {name for name, text in catalog.comments(view.name).items() - shared if name}
        assert documented <= {each.name for each in view.columns}, view.name
    for name, unit in UNITS.items():
        found = [(view.name, each) for view in views for each in view.columns if re.search(name, each.name)]
        assert found
        assert [
            f"{view}.{each.name}" for view, each in found if unit not in each.about.lower().replace("utc", "UTC")
        ] == []


def test_a_view_is_found_by_its_name(views):
    assert dictionary.find(views, "LEASE").name == "lease"
    with pytest.raises(LedgerError, match=r"the ledger has no view 'leases'; did you mean 'lease'"):
        dictionary.find(views, "leases")
