from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import dashboard.format
from rose.events import BUCKETS
from rose.pricing.export import facts
from rose.pricing.export.bill import Bill
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from tests.pricing.export.conftest import NAME, RUN


def test_every_word_of_an_export_is_explained() -> None:
    words = {word for word, _ in facts.DEFINITIONS}
    assert {*BUCKETS, "unaccounted", "transfer", "energy", AMORTIZED, FULLY_LOADED, MARGINAL, "unallocated"} <= words


def test_the_glossary_has_the_words_of_the_exports_and_the_dashboard() -> None:
    glossary = (Path(__file__).parents[3] / "docs" / "glossary.md").read_text()
    for word, meaning in (*facts.DEFINITIONS, *facts.SYMBOLS):
        assert f"| {word} | {meaning} |" in glossary, "write docs/glossary.md anew from rose.pricing.export.facts"
    assert all(dashboard.format.BUCKET_WORDS[bucket] == dict(facts.DEFINITIONS)[bucket] for bucket in BUCKETS)


def test_a_bill_is_named_by_its_close_or_its_runs(close_bill: Bill, period_bill: Bill) -> None:
    assert facts.title(close_bill) == f"Closed period {close_bill.close_id}"
    assert facts.title(period_bill) == f"Run {NAME} ({RUN}), not closed"


def test_what_must_be_known_is_said(close_bill: Bill, period_bill: Bill) -> None:
    about = dict(facts.about(close_bill))
    assert (about["currency"], about["provenance"]) == ("USD", "live")
    assert about["ledger"] == f"verified; now {close_bill.verification}"
    assert facts.ledger(close_bill.stamp, "") == "verified"
    assert about["period"] == "2026-02-28T22:00:00.000000Z to 2026-03-01T02:00:00.000000Z"
    assert (about["devices"], about["corrections"]) == ("3", "1 posted")
    assert about["price book"].startswith("Price book awkward 1 (")
    assert about["price book"].endswith("), USD, frozen with the close")
    assert dict(facts.about(period_bill))["corrections"] == "none: the period is not closed"


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ({}, []),
        ({"verified": False}, ["UNVERIFIED"]),
        ({"provenance": "simulated"}, ["SIMULATED"]),
        ({"verified": False, "provenance": "simulated"}, ["UNVERIFIED", "SIMULATED"]),
    ],
)
def test_figures_that_are_not_to_be_trusted_are_marked(
    period_bill: Bill, changed: dict[str, Any], warned: list[str]
) -> None:
    stamp = dataclasses.replace(period_bill.stamp, **changed)
    assert [warning.split()[0].rstrip(":") for warning in facts.warnings(stamp)] == warned
