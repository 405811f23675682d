from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rose.pricing.invoices import build
from rose.pricing.invoices.invoice import order
from tests.pricing.invoices.conftest import SECOND


def test_it_is_plain_values_whose_parts_sum_to_the_total(books: Path) -> None:
    for invoice in build.invoices(books, SECOND):
        said = json.loads(json.dumps(invoice.to_json()))
        parts = ("charges_nano", "corrections_nano", "shared_nano", "credits_nano")
        assert sum(said[part] for part in parts) == said["total_nano"] == invoice.total_nano
        assert sum(line["amount_nano"] for line in said["lines"]) == said["total_nano"]
        assert (said["currency"], said["view"], said["final"]) == ("USD", "amortized", True)
        assert said["close_sha256"] == invoice.close.sha256  # type: ignore[union-attr]


def test_numbers_tell_teams_apart_that_file_names_cannot(books: Path) -> None:
    invoice = build.invoices(books, SECOND)[0]
    # The last has the name of a file that is another's.
    teams = ("a b", "a-b", "a/b", "a--b", "../a", "é", "", "A b", "x/", "x-361757e6")
    numbers = {dataclasses.replace(invoice, team=team).number for team in teams}
    assert len(numbers) == len(teams)
    euros = dataclasses.replace(build.invoices(books, SECOND, currency="EUR")[0], team="chat")
    assert euros.number == "2026-06-03-to-2026-06-05-live-1-chat-EUR"
    assert dataclasses.replace(invoice, team="chat-EUR").number != euros.number
    assert all("/" not in number and ".." not in number and number.isascii() for number in numbers)


def test_what_is_of_no_team_comes_last() -> None:
    assert sorted(["unallocated", "zoo", "chat"], key=order) == ["chat", "zoo", "unallocated"]
