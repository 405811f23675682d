from __future__ import annotations

from decimal import Decimal
from importlib import resources

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
CITED = 'source = "board"\nsource_date = 2026-05-01\n'
SHARED = f"""
[[shared_cost]]
name = "platform"
usd_per_month = 30000
split = "usage"
{CITED}"""
PARTS = SHARED.replace('split = "usage"', "shares = {{ research = {}, chat = {} }}")
IDLE = SHARED.replace('"platform"', '"idle"').replace("usd_per_month = 30000", 'share_of = "idle"')
CREDIT = f"""
[[credit]]
name = "vendor"
usd = 5000
valid_from = 2026-05-01
{CITED}"""
TAG = f"""
[[device_tag]]
hardware = "GPU-7*"
pool = "serving"
tags = {{ team = "chat", cost_centre = "4711" }}
{CITED}"""


def read(text: str) -> PriceBook:
    return pricebook.parse(EXAMPLE + text, "book.toml")


def test_rules_are_read_and_example_books_have_none() -> None:
    book = read(SHARED + CREDIT + TAG + IDLE)
    assert [rule.name for rule in book.shared_cost] == ["platform", "idle"]
    assert (book.credit[0].usd, book.device_tag[0].tags["team"]) == (Decimal(5000), "chat")
    assert read(PARTS.format('"0.6"', "0.4")).shared_cost[0].shares == {
        "research": Decimal("0.6"),
        "chat": Decimal("0.4"),
    }
    for name in pricebook.shipped():
        shipped = pricebook.load(name)
        assert [*shipped.shared_cost, *shipped.credit, *shipped.device_tag] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SHARED.replace("30000", "-1"), "line {2}: [[shared_cost]] usd_per_month: must be 0 or more; 0"),
        (SHARED.replace('"usage"', '"fair"'), "line {3}: [[shared_cost]] split: must be 'usage' or 'even' (got"),
        (SHARED.replace("usd_per_month = 30000\n", ""), "line {0}: [[shared_cost]]: needs one of usd_per_month and"),
        (SHARED.replace("30000\n", '3\nshare_of = "idle"\n'), "[[shared_cost]]: needs one of usd_per_month and"),
        (SHARED.replace('split = "usage"\n', ""), "line {0}: [[shared_cost]]: needs one of split and shares"),
        (IDLE.replace('"idle"\nsplit', '"waste"\nsplit'), "share_of: must be 'idle' or 'unallocated' (got 'waste')"),
        (PARTS.format("0.6", "0.3"), "line {3}: [[shared_cost]] shares: must sum to 1, and they sum to 0.9"),
        (PARTS.format("1", "0"), "line {3}: [[shared_cost]] shares: must be a part of 1 such as 0.35, above 0"),
        (PARTS.format('"x"', "1"), "line {3}: [[shared_cost]] shares: must be a part of 1 such as 0.35, above 0"),
        (SHARED.replace('split = "usage"', "shares = 1"), "shares: must be a table of teams and their parts: {{"),
        (SHARED + SHARED, "'shared_cost platform' is given twice for the same days"),
        (IDLE + IDLE.replace('"idle"\nshare', '"waste"\nshare'), "'shared_cost of idle' is given twice for the same"),
        (CREDIT.replace("5000", '"5000"'), "line {2}: [[credit]] usd: must be a number, without quotes (got '5000')"),
        (CREDIT.replace("valid_from = 2026-05-01\n", ""), "line {0}: [[credit]] valid_from: is missing; add"),
        (CREDIT.replace("usd", "clas = 1\nusd"), "[[credit]] clas: unknown key; did you mean class?"),
        (TAG.replace('"4711"', "4711"), "line {3}: [[device_tag]] tags: must have text in quotes for each tag, and"),
        (TAG.replace('hardware = "GPU-7*"\npool = "serving"\n', ""), "line {0}: [[device_tag]]: names no device: "),
        (TAG.replace('"serving"', '"chat"'), "pool: must be 'serving', 'rollout' or 'train' (got 'chat')"),
        (TAG + TAG, "'device_tag pool=serving hardware=GPU-7*' is given twice for the same days"),
    ],
)
def test_a_wrong_rule_is_refused_with_line_field_and_value(text: str, says: str) -> None:
    with pytest.raises(PriceBookError) as caught:
        read(text)
    first = len(EXAMPLE.splitlines()) + 2
    assert says.format(*range(first, first + 5)) in str(caught.value)


def test_what_names_fewer_devices_goes_before() -> None:
    entries = [
        'device = "s0"',
        'hardware = "GPU-71*"',
        'hardware = "GPU-7*"',
        'class = "h100-sxm"\npool = "train"',
        'class = "h100-sxm"',
        'pool = "train"',
    ]
    text = "".join(f"\n[[device_tag]]\n{entry}\ntags = {{ team = 'a' }}\n{CITED}" for entry in entries)
    tags = read(text).device_tag
    assert sorted([*tags[3:], *tags[:3]], key=lambda tag: tag.place) == tags
    assert [tag.names("s0", "GPU-72", "serving", "h100-sxm") for tag in tags] == [True, False, True, False, True, False]
    assert not tags[2].names("s0", None, "serving", "h100-sxm")
