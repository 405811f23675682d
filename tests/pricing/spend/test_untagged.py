from __future__ import annotations

from pathlib import Path

import pytest

from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.spend.untagged import Untagged, untagged
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, HOUR_NS, T0_NS, S, slice_, us

USD = 10**9
DAY = Period(T0_NS, T0_NS + DAY_NS)
TAGS = {
    "bare": None,
    "empty": "{}",
    "project": '{"project": "maze"}',
    "owned": '{"serving_team": "chat"}',
    "blank": '{"team": "", "note": null}',
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one device for an hour each, with different tags."""
    folder = tmp_path_factory.mktemp("tags") / "ledger"
    for run_id, tags in TAGS.items():
        place = {"device_id": f"{run_id}-0", "pool": "serving", "device_class": "h100-sxm"}
        with LedgerWriter.open(folder, run_id, run_id) as ledger:
            for event in (
                events.Run(action="started", name=run_id, at_us=us(0), tags_json=tags),
                events.Device(action="joined", t_ns=T0_NS, at_us=us(0), **place),
                slice_(0, f"{run_id}-0", serving=3600),
                events.Device(action="left", t_ns=T0_NS + 3600 * S, at_us=us(3600), **place),
                events.Run(action="ended", name=run_id, at_us=us(3600)),
            ):
                ledger.record(event, durable=False)
    return folder


def asked(root: Path, entry: str = "") -> Untagged:
    cited = 'source = "inventory"\nsource_date = 2026-01-01\n'
    text = BOOK_TOML + (f"\n[[device_tag]]\n{entry}\n{cited}" if entry else "")
    path = root.parent / "book.toml"
    path.write_text(text)
    assert pricebook.load(path)
    return untagged(root, DAY, str(path))


def test_spend_without_team_and_tag_is_shown_by_run_and_device(root: Path) -> None:
    made = asked(root)
    assert [(line.run_id, line.device_id, line.cost_nano) for line in made.lines] == [
        (run_id, f"{run_id}-0", 3_600_000_000) for run_id in ("bare", "blank", "empty")
    ]
    assert (made.cost_nano, made.bill_nano, made.percent(made.cost_nano)) == (10_800_000_000, 18_000_000_000, 60)
    assert made.to_json()["lines"][0]["percent"] == 20


@pytest.mark.long
def test_a_device_s_tag_or_team_is_one(root: Path) -> None:
    assert [line.run_id for line in asked(root, 'device = "bare-0"\ntags = { rack = "7" }').lines] == ["blank", "empty"]
    assert asked(root, 'class = "h100-sxm"\ntags = { team = "ops" }').lines == ()


def test_devices_are_kept_by_day(root: Path) -> None:
    with pytest.raises(PricingError, match="whole UTC days"):
        untagged(root, Period(T0_NS, T0_NS + HOUR_NS), "example")
