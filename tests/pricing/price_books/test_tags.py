from importlib import resources

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
CITED = 'source = "board"\nsource_date = 2026-05-01\n'
TAG = f"""
[[device_tag]]
hardware = "GPU-7*"
pool = "serving"
tags = {{ team = "chat", cost_centre = "4711" }}
{CITED}"""


def read(text: str) -> PriceBook:
    return pricebook.parse(EXAMPLE + text, "book.toml")


def test_rules_are_read_and_example_books_have_none() -> None:
    assert read(TAG).device_tag[0].tags["team"] == "chat"
    assert [tag for name in pricebook.shipped() for tag in pricebook.load(name).device_tag] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TAG.replace('"4711"', "4711"), "device_tag.0.tags.cost_centre: "),
        (TAG.replace('hardware = "GPU-7*"\npool = "serving"\n', ""), "device_tag.0: names no device: "),
        (TAG.replace('"serving"', '"chat"'), "device_tag.0.pool: Input should be 'serving'"),
        (TAG + TAG, "device_tag pool=serving hardware=GPU-7* has two entries for one day"),
    ],
)
def test_a_wrong_rule_is_refused_with_field_and_value(text: str, says: str) -> None:
    with pytest.raises(PriceBookError) as caught:
        read(text)
    assert says in str(caught.value)


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
