from __future__ import annotations

import json
from dataclasses import dataclass

from rose.pricing.borrowing.marginal import Marginal
from rose.pricing.borrowing.report.common import amount, counted, per_device_hour
from rose.pricing.document import to_json
from rose.pricing.figures import BookFacts, Figure, Figures, Stamp
from rose.pricing.price_books.pricebook import load
from rose.pricing.stats.bootstrap import Interval

BOOK = BookFacts.from_book(load("example"))
MAKE = Figures(Stamp(from_ns=0, to_ns=10**9, provenance="simulated", book=BOOK, verified=True))
HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Document:
    cost: Figure
    rows: dict[int, tuple[Figure, ...]]


def test_every_figure_of_a_document_goes_with_its_stamp() -> None:
    figure = amount(MAKE, 1_500_000_000, interval=Interval(low=1.25, high=None))
    document = json.loads(json.dumps(to_json(Document(figure, {3: (counted(MAKE, None, "ratio", why="too few"),)}))))
    assert document["cost"]["value"] == 1_500_000_000
    assert (document["cost"]["low"], document["cost"]["high"]) == (1_250_000_000, None)
    (row,) = document["rows"]["3"]
    assert (row["value"], row["text"], row["provenance"]) == (None, "too few", "simulated")
    assert document["cost"]["currency"] == "USD"
    assert set(document["cost"]["period"]) == {"from", "to"}


def test_an_interval_over_the_run_is_one_for_an_hour() -> None:
    m = Marginal(terms={}, borrowed_ns=2 * HOUR_NS, idle_anyway=True)
    assert per_device_hour(Interval(low=-1, high=4), m) == Interval(low=-0.5, high=2)
    assert per_device_hour(Interval(low=0, high=None), m) is None
    assert per_device_hour(None, m) is None
    assert per_device_hour(Interval(low=0, high=1), Marginal(terms={}, borrowed_ns=0, idle_anyway=True)) is None
