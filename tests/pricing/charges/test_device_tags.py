from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing import charges
from rose.pricing.price_books import pricebook
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, begun, fleet_events, write

CITED = 'source = "inventory"\nsource_date = 2026-01-01\n'


def teams(tmp_path: Path, tags: str | None, *entries: str) -> dict[str, set[str]]:
    """Teams by bucket, of an hour of `s0`, with tags of the run and of the book."""
    root = tmp_path / "ledger"
    if not root.exists():
        write(root, [*begun(tags), *fleet_events()[2:]])
    text = BOOK_TOML + "".join(f"\n[[device_tag]]\n{entry}\n{CITED}" for entry in entries)
    frame = charges.price(root, pricebook.parse(text, "book.toml")).frame
    assert frame["cost_nano"].sum() == BILL_NANO
    by_bucket: dict[str, set[str]] = {}
    for bucket, team in frame.select("bucket", "team").iter_rows():
        by_bucket.setdefault(bucket, set()).add(team)
    return by_bucket


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen",
    ['device = "s0"', 'pool = "serving"', 'class = "h100-sxm"', 'hardware = "run/*"', 'hardware = "*"'],
)
def test_a_device_s_team_pays_for_what_its_run_says_no_team_of(tmp_path: Path, chosen: str) -> None:
    by_bucket = teams(tmp_path, None, f'{chosen}\ntags = {{ team = "chat", centre = "4711" }}')
    assert set().union(*by_bucket.values()) == {"chat"}
    missed = chosen.replace("s0", "s1").replace("serving", "train").replace("h100", "h200").replace("*", "?")
    assert set().union(*teams(tmp_path, None, f'{missed}\ntags = {{ team = "chat" }}').values()) == {"unallocated"}
    assert set().union(*teams(tmp_path, None, f'{chosen}\ntags = {{ centre = "1" }}').values()) == {"unallocated"}


def test_the_run_s_own_tags_win(tmp_path: Path) -> None:
    by_bucket = teams(tmp_path, '{"team": "research"}', 'class = "h100-sxm"\ntags = { team = "chat" }')
    assert (by_bucket["rollout"], by_bucket["serving"], by_bucket["idle"]) == ({"research"}, {"chat"}, {"chat"})


@pytest.mark.long
def test_what_names_fewer_devices_holds(tmp_path: Path) -> None:
    entries = ['device = "s0"\ntags = { team = "chat" }', 'pool = "serving"\ntags = { team = "other" }']
    for given in (entries, entries[::-1]):
        assert set().union(*teams(tmp_path, None, *given).values()) == {"chat"}
