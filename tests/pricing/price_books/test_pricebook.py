import hashlib
import re
from datetime import UTC, datetime
from decimal import Decimal
from importlib import resources
from pathlib import Path

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
DAY_NS = 86_400 * 10**9
CITED = 'source = "by hand"\nsource_date = 2026-05-01\n'
DATED = (
    EXAMPLE.replace("[electricity]\n", "[[electricity]]\nvalid_to = 2026-07-01\n")
    + f"\n[[electricity]]\nvalid_from = 2026-09-01\nusd_per_kwh = 0.2\npue = 1.5\n{CITED}"
    + f'\n[[transfer]]\nroute = "ship"\nvalid_from = 2026-06-01\nusd_per_gb = 1\n{CITED}'
    + f'\n[[device]]\nclass = "h100-sxm"\npool = "rollout"\nusd_per_hour = 9\ncommitment = "spot"\n'
    f"energy_included = true\nvalid_from = 2026-06-01\nvalid_to = 2026-07-01\n{CITED}"
    + f'\n[[device]]\nclass = "tpu"\npool = "train"\nusd_per_hour = 3\ncommitment = "c"\n'
    f"valid_from = 2026-01-01\n{CITED}"
)


def ns(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 10**9


def dated() -> PriceBook:
    return pricebook.parse(DATED, "dated.toml")


def test_the_example_has_what_a_demonstration_needs_and_exact_rates() -> None:
    book = pricebook.load("example")
    assert {"cpu-core", "h100-sxm", "h200"} <= {price.device_class for price in book.device}
    may = ns(2026, 5, 1)
    assert "no market price" in book.device_at("cpu-core", "rollout", may).source
    assert [str(offer.usd_per_hour) for offer in book.offers_at("h100-sxm", may)] == ["1.99", "5.00", "1.00"]
    assert book.offers_at("h100-sxm", may - 1) == ()
    assert book.offers_at("b200", may) == ()
    assert all("no market price" in offer.source for offer in book.offers_at("cpu-core", may))


@pytest.mark.parametrize("name", pricebook.shipped())
def test_every_shipped_book_prices_the_demonstration_and_cites_each_figure(name: str) -> None:
    book, at_ns = pricebook.load(name), ns(2026, 11, 21)
    assert book.name == name
    for pool in ("serving", "rollout", "train"):
        assert book.device_at("cpu-core", pool, at_ns).usd_per_hour > 0
        assert book.device_at("h100-sxm", pool, at_ns).usd_per_hour > 0
    for device_class in {price.device_class for price in book.device}:
        assert book.power_of(device_class).load_w > 0
        assert book.offers_at(device_class, at_ns)
    for route in ("loopback", "intra-zone", "inter-zone", "inter-region", "internet"):
        assert book.transfer_at(route, at_ns).usd_per_gb >= 0
    assert book.verifier_at("frozenlake-goal", at_ns).usd_per_verdict == 0
    for table in ("device", "offer", "power"):
        for entry in book.entries(table):
            assert entry.source.startswith(("example: ", "assumption")), entry


def test_the_time_around_a_price_change_is_covered_by_both_prices() -> None:
    change, book = ns(2026, 3, 1), pricebook.load("example")
    prices = [book.device_at("h100-sxm", "serving", at) for at in (change - 1, change)]
    assert [price.usd_per_hour for price in prices] == [Decimal("1.70"), Decimal("2.35")]
    assert book.stretches(change - 5, change + 7) == [(change - 5, change), (change, change + 7)]
    assert book.stretches(change, change) == []


def test_a_price_for_a_pool_goes_before_the_one_for_the_class() -> None:
    book, june, july = dated(), ns(2026, 6, 1), ns(2026, 7, 1)
    assert book.device_at("h100-sxm", "rollout", june).usd_per_hour == 9
    assert book.device_at("h100-sxm", "rollout", june).energy_included
    assert book.device_at("h100-sxm", "serving", june).usd_per_hour == Decimal("2.35")
    pools = [book.device_at("h100-sxm", "rollout", at).pool for at in (june - 1, june, july - 1, july)]
    assert pools == [None, "rollout", "rollout", None]


def test_dated_tables_hold_on_their_days_only() -> None:
    book = dated()
    assert book.electricity_at(ns(2026, 7, 1) - 1).usd_per_kwh == Decimal("0.10")
    assert book.electricity_at(ns(2026, 9, 1)).pue == Decimal("1.5")
    assert {ns(2026, 7, 1), ns(2026, 9, 1)} <= set(book.change_times_ns())
    with pytest.raises(PriceBookError, match=r"dated\.toml has no \[\[electricity\]\] on 2026-07-01; add one whose"):
        book.electricity_at(ns(2026, 7, 1))
    with pytest.raises(PriceBookError, match=r"no \[\[transfer\]\] for route 'ship' on 2026-05-31"):
        book.transfer_at("ship", ns(2026, 6, 1) - 1)
    # What has no dates holds always.
    assert book.lending_at(0) == book.lending_at(ns(2026, 9, 1))
    assert book.transfer_at("ship", ns(2026, 6, 1)).usd_per_gb == 1


def test_a_missing_price_is_refused_with_what_and_when() -> None:
    book, june = dated(), ns(2026, 6, 1)
    with pytest.raises(PriceBookError, match=r"'b200' \(it has cpu-core, h100-sxm, h200, tpu\); add a \[\[device\]\]"):
        book.device_at("b200", "serving", june)
    with pytest.raises(PriceBookError, match="'h100-sxm' in pool 'rollout' on 2025-09-30"):
        book.device_at("h100-sxm", "rollout", ns(2025, 9, 30))
    with pytest.raises(PriceBookError, match=r"'tpu' in pool 'serving' \(it has one for pool train\)"):
        book.device_at("tpu", "serving", june)
    assert book.device_at("tpu", "train", june).usd_per_hour == 3
    with pytest.raises(PriceBookError, match=r"\[\[power\]\] for device class 'b200'"):
        book.power_of("b200")
    with pytest.raises(PriceBookError, match=r"\[\[transfer\]\] for route 'pigeon'; add one, 0 if it is free"):
        book.transfer_at("pigeon", june)
    with pytest.raises(PriceBookError, match="for verifier 'judge'"):
        book.verifier_at("judge", june)
    with pytest.raises(KeyError):
        book.entries("people")


def test_a_book_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "book.toml"
    ours = EXAMPLE.replace('name = "example"', 'name = "ours"')
    path.write_text(ours)
    book = pricebook.load(path)
    assert (book.name, book.text, book.path) == ("ours", ours, str(path))
    assert book.sha256 == hashlib.sha256(ours.encode()).hexdigest() == pricebook.parse(ours, "elsewhere").sha256
    assert book.sha256 != pricebook.load("example").sha256
    assert not {"text", "sha256", "path"} & book.model_dump().keys()
    assert ours not in repr(book)
    path.write_bytes(b"\xef\xbb\xbf" + ours.encode())
    assert pricebook.load(path).sha256 == book.sha256  # an editor's byte order mark is no part of the text
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceBookError, match="not UTF-8"):
        pricebook.load(path)


def test_a_name_that_is_no_book_lists_those_there_are(tmp_path: Path) -> None:
    assert pricebook.shipped() == ("example",)
    assert pricebook.is_example("example-owned"), "made up too, in an older version"
    with pytest.raises(PriceBookError, match=r"cannot read price book .*nowhere\.toml: No such file.*example"):
        pricebook.load(tmp_path / "nowhere.toml")
    with pytest.raises(PriceBookError, match=r"Give a TOML file, or .*did you mean 'example'"):
        pricebook.load("exampel")


def test_what_an_example_lacks_is_added_in_a_copy_and_its_file_is_where_it_says() -> None:
    with pytest.raises(PriceBookError) as refused:
        pricebook.load("example").power_of("b200")
    assert str(refused.value).endswith("add a [[power]], in a copy of the book with a `name` of your own")
    named = re.search(r"\((rose/[^)]*)\)", pricebook.load("example").path)
    assert named is not None
    assert (Path(__file__).parents[3] / named[1]).is_file()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("usd_per_hour = 1.70", "usd_per_hour = -1.70", r"device\.0\.usd_per_hour: .*equal to 0.*-1\.70"),
        ("usd_per_hour = 1.70", "usd_per_hour = nan", r"device\.0\.usd_per_hour: .*finite.*NaN"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1.7000000000001", r"device\.0\.usd_per_hour: has 13 decimals"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1e12", r"device\.0\.usd_per_hour: must be below 1e12"),
        ("usd_per_hour = 1.70", "usd_per_hour = 4.7e8", r"device\.0\.usd_per_hour: .*equal to 1000000"),
        ("usd_per_hour = 1.70", f"usd_per_hour = {'9' * 5000}", "a number too long for any price"),
        ("usd_per_hour = 2.35", 'usd_per_hour = "2.35"', r"device\.1\.usd_per_hour: .*without quotes.*got '2\.35'"),
        ("usd_per_hour = 2.35", "usd_per_hour = true", r"device\.1\.usd_per_hour: must be a number.*got True"),
        ("usd_per_hour = 2.35", "usd_per_minute = 2", r"device\.1\.usd_per_minute: no such field"),
        ("usd_per_hour = 2.35", "", r"device\.1\.usd_per_hour: Field required"),
        ("usd_per_hour = 2.35", "usd_per_hour = 2.35\nlist_usd_per_hour = 3", r"device\.1\.list_usd_per_hour: no such"),
        ("usd_per_hour = 2.35", "usd_per_hour = 2.35\nlow_share = 0.9", r"device\.1: has only one of low_share and"),
        ("usd_per_hour = 2.35", "usd_per_hour = 2\nlow_share = 0.9\nhigh_share = 2", r"device\.1: .*taken as known"),
        ("low_share = 0.6", "low_share = 1.1", r"low_share: .*equal to 1.*1\.1"),
        ("high_share = 1.6", "high_share = 0.9", r"high_share: .*equal to 1.*0\.9"),
        ('class = "h200"', "class = 200", r"device\.2\.class: .*string \(got 200\)"),
        ('class = "h200"', 'class = "h200"\npool = "chat"', r"device\.2\.pool: Input.*got 'chat'"),
        ('currency = "USD"', 'currency = "EUR"', r"currency: .*'USD' \(got 'EUR'\)"),
        ('currency = "USD"', 'currency = "USD"\nfiscal_start = 2', r"fiscal_start: no such field"),
        ("[electricity]", "[[exchange_rate]]\nusd_per_unit = 1\n[electricity]", r"exchange_rate: no such field"),
        ('name = "example"', 'name = "example"\nsha256 = "0"', r"sha256: no such field"),
        ('version = "2026-11-22"', 'version = ""', r"version: .*at least 1 character"),
        ("valid_to = 2026-03-01", "valid_to = 2025-10-01", r"device\.0\.valid_to: must be after valid_from 2025-10-01"),
        ("valid_to = 2026-03-01", 'valid_to = "soon"', r"device\.0\.valid_to: must be a date.*got 'soon'"),
        ("valid_to = 2026-03-01", "valid_to = 2026-02-30", "not valid TOML: .*line 13"),
        ("pue = 1.25", "pue = 0.9", r"electricity\.0\.pue: .*equal to 1.*0\.9"),
        ("load_w = 680", "load_w = 200", r"power\.0\.load_w: must be at least idle_w 267"),
        ("violation_usd = 0", "", r"lending\.0\.violation_usd: Field required"),
        ("idle_anyway = true", "idle_anyway = 1.2", r"idle_anyway: .*equal to 1.*1\.2"),
        (
            "idle_anyway = true",
            "idle_anyway = 0.9\nidle_anyway_low = 0.8",
            r"lending\.0: has only one of idle_anyway_low",
        ),
        ("idle_anyway = true", "idle_anyway_low = 0.8\nidle_anyway_high = 1", r"idle_anyway_low but no idle_anyway"),
        ('commitment = "1-year reserved"', 'commitment = "c"\nbought_in_hours = 0', r"bought_in_hours: .*than 0"),
        ("[electricity]", "[electrcity]", r"electricity: Field required\n  electrcity: no such field.*'electricity'"),
        ("[electricity]", "[tokens]", r"not valid TOML: Cannot .*write \[\[\.\.\.\]\] before each"),
    ],
)
def test_a_wrong_book_is_refused_with_the_field_and_its_value(old: str, new: str, says: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(PriceBookError, match=r"^price book my/book\.toml") as caught:
        pricebook.parse(EXAMPLE.replace(old, new, 1), "my/book.toml")
    assert re.search(says, str(caught.value)), caught.value


def test_everything_wrong_is_said_at_once_and_tables_may_not_be_missing() -> None:
    text = EXAMPLE.replace('currency = "USD"', 'currency = "DKK"').replace("pue = 1.25", "pue = nan")
    with pytest.raises(PriceBookError) as caught:
        pricebook.parse(text, "b")
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == ["currency", "electricity.0.pue"]
    with pytest.raises(PriceBookError) as caught:
        pricebook.parse('name = "n"\nversion = "1"\ncurrency = "USD"\ntransfer = 5\ndevice = []\n', "b")
    for table in ("device", "electricity", "lending", "tokens", "transfer"):
        assert re.search(rf"^  {table}: ", str(caught.value), re.M), table


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("valid_to = 2026-03-01", "valid_to = 2026-03-02", "device h100-sxm .* 2025-10-01 until 2026-03-02, another"),
        ("valid_to = 2026-03-01", "", "device h100-sxm has two entries for one day: one is valid from 2025-10-01"),
        (
            'route = "internet"',
            'route = "loopback"',
            "transfer loopback has two entries for one day: one is valid always",
        ),
    ],
)
def test_two_prices_for_one_day_are_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(PriceBookError, match=says):
        pricebook.parse(EXAMPLE.replace(old, new, 1), "b")


def test_a_long_price_overlaps_every_later_one() -> None:
    def price(first: str, end: str) -> str:
        return f'\n[[transfer]]\nroute = "ship"\nusd_per_gb = 1\nvalid_from = {first}\nvalid_to = {end}\n{CITED}'

    text = EXAMPLE + price("2026-01-01", "2027-01-01") + price("2026-02-01", "2026-03-01")
    with pytest.raises(PriceBookError, match="2026-01-01 until 2027-01-01, another 2026-02-01 until 2026-03-01"):
        pricebook.parse(text, "b")
