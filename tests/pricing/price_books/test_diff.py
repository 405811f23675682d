from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from importlib import resources

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.diff import Change, Diff, diff

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
CITED = 'source = "by hand"\nsource_date = 2026-05-01\n'


def changed(*changes: tuple[str, str]) -> Diff:
    """From the example to the example with some of its text replaced."""
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return diff(pricebook.parse(EXAMPLE, "old"), pricebook.parse(text, "new"))


def only(difference: Diff) -> Change:
    (change,) = difference.changes
    return change


def test_a_price_that_changed_says_by_how_much_and_for_which_days() -> None:
    change = only(changed(("usd_per_hour = 2.35", "usd_per_hour = 2.82")))
    assert (change.what, change.field, change.kind) == ("device h100-sxm", "usd_per_hour", "changed")
    assert (change.old, change.new, change.percent) == (Decimal("2.35"), Decimal("2.82"), pytest.approx(20))
    assert (change.valid_from, change.valid_to) == (date(2026, 3, 1), None)
    only_past = only(changed(("usd_per_hour = 1.70", "usd_per_hour = 1.36")))
    assert (only_past.percent, only_past.valid_to) == (pytest.approx(-20), date(2026, 3, 1))
    free = only(changed(("violation_usd = 0", "violation_usd = 0.001")))
    assert (free.what, free.percent, free.valid_from) == ("lending", None, None)
    assert only(changed(("idle_anyway = true", "idle_anyway = 0.9"))).percent == pytest.approx(-10)


def test_layout_comments_version_and_ways_to_write_a_number_are_no_difference() -> None:
    difference = changed(
        ('version = "2026-11-22"', 'version = "2"'),
        ("# What a device", "# Whatever a device"),
        ("usd_per_hour = 2.35", "usd_per_hour = 2.350"),
        ("[electricity]", "[[electricity]]"),
        ("idle_w = 267\nload_w = 680", "points = [[0.0, 267], [0.5, 473.5], [1.0, 680]]"),
    )
    assert difference.changes == ()
    assert difference.old.sha256 != difference.new.sha256


def test_a_date_that_moved_is_a_price_that_changed_on_the_days_between() -> None:
    moved = changed(
        ("valid_to = 2026-03-01", "valid_to = 2026-02-01"), ("valid_from = 2026-03-01", "valid_from = 2026-02-01")
    )
    rate = next(change for change in moved.changes if change.field == "usd_per_hour")
    assert (rate.old, rate.new) == (Decimal("1.70"), Decimal("2.35"))
    assert {(change.valid_from, change.valid_to) for change in moved.changes} == {(date(2026, 2, 1), date(2026, 3, 1))}
    ended = only(changed(("valid_to = 2026-03-01", "valid_to = 2026-02-20")))
    assert (ended.kind, ended.valid_from, ended.valid_to) == ("removed", date(2026, 2, 20), date(2026, 3, 1))


def test_an_entry_added_or_removed_is_one_change() -> None:
    new = pricebook.parse(f'{EXAMPLE}\n[[transfer]]\nroute = "ship"\nusd_per_gb = 0.5\n{CITED}', "new")
    added = only(diff(pricebook.parse(EXAMPLE, "old"), new))
    assert (added.what, added.kind, added.field, added.old, added.new) == (
        "transfer ship",
        "added",
        None,
        None,
        new.transfer[-1],
    )
    assert only(diff(new, pricebook.parse(EXAMPLE, "old"))).kind == "removed"


def test_power_is_compared_load_by_load() -> None:
    difference = changed(("idle_w = 267\nload_w = 680", "points = [[0.0, 267], [0.5, 520], [1.0, 680]]"))
    change = only(difference)
    assert (change.field, change.old, change.new) == ("watts at load 0.5", Decimal("473.5"), Decimal(520))


def test_json_is_exact_and_says_no_more_than_there_is() -> None:
    document = changed(
        ("usd_per_hour = 2.35", "usd_per_hour = 2.82"), ('route = "internet"', 'route = "post"')
    ).to_json()
    assert json.loads(json.dumps(document)) == document
    rate, removed, added = document["changes"]
    assert (rate["old"], rate["new"], rate["valid_from"], rate["valid_to"]) == ("2.35", "2.82", "2026-03-01", None)
    assert (removed["key"], removed["old"]["usd_per_gb"], removed["new"]) == (["internet"], "0.09", None)
    assert (added["change"], added["old"], added["new"]["route"]) == ("added", None, "post")
    assert document["old"]["sha256"] != document["new"]["sha256"]
    gate = changed(("idle_anyway = true", "idle_anyway = 0.9")).to_json()["changes"]
    assert [(change["old"], change["new"], change["percent"]) for change in gate] == [("1", "0.9", pytest.approx(-10))]
