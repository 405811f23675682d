from __future__ import annotations

import re
from datetime import date
from importlib import resources
from pathlib import Path

import pytest

from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import midnight_ns
from rose.pricing.price_books.pricebook import PriceBookError

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
CITED = 'source = "by hand"\nsource_date = 2026-05-01\n'


def faults(text: str) -> str:
    with pytest.raises(PriceBookError) as caught:
        pricebook.parse(text, "my/book.toml")
    message = str(caught.value)
    assert message.startswith("price book my/book.toml")
    return message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("usd_per_hour = 1.70", "usd_per_hour = -1.70", r"line 10: \[\[device\]\] usd_per_hour: must be 0.*got -1\.70"),
        ("usd_per_hour = 1.70", "usd_per_hour = nan", r"line 10: \[\[device\]\] usd_per_hour: .*finite.*got NaN"),
        ("usd_per_hour = 1.70", "usd_per_hour = -inf", r"line 10: .* usd_per_hour: .*finite.*got -Infinity"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1.7000000000001", r"line 10: .*has 13 decimals.*12 at most; round it"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1e-13", "line 10: .*has 13 decimals"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1e12", "line 10: .*must be below 1e12; check the unit"),
        ("usd_per_hour = 1.70", "usd_per_hour = 4.7e8", "line 10: .*usd_per_hour.* 4.7E\\+8.*at most 1,000,000"),
        ("usd_per_hour = 1.70", f"usd_per_hour = {'9' * 5000}", "a number too long for any price"),
        ("usd_per_hour = 1.70", "usd_per_hour = 1e99999999999999999999", "a number too long for any price"),
        ("usd_per_hour = 2.35", 'usd_per_hour = "2.35"', r"line 19: .*must be a number, without quotes.*got '2\.35'"),
        ("usd_per_hour = 2.35", "usd_per_hour = true", r"line 19: .*must be a number.*got True"),
        ("usd_per_hour = 2.35", "usd_per_hour = [2]", r"line 19: .*must be a number.*got \[2\]"),
        ("usd_per_hour = 2.35", "usd_per_minute = 2", r"line 19: .*unknown key; did you mean usd_per_hour\?"),
        (
            "usd_per_hour = 2.35",
            "zzz = 2",
            r"zzz: unknown key; known are bought_in_hours, class, commitment, contracted_usd_per_hour, discount, en",
        ),
        ("usd_per_hour = 2.35", "", r"line 17: \[\[device\]\] usd_per_hour: is missing; add usd_per_hour ="),
        ("usd_per_hour = 2.35", "usd_per_hour = 2.35\nlow_share = 0.9", r"has one of low_share and high_share"),
        ("usd_per_hour = 2.35", "usd_per_hour = 2\nlow_share = 0.9\nhigh_share = 2", r"price is taken as known"),
        ("low_share = 0.6", "low_share = 1.1", r"low_share: must be from 0 to 1.*got 1\.1"),
        ("high_share = 1.6", "high_share = 0.9", r"high_share: must be 1 or more.*got 0\.9"),
        ('class = "h200"', "class = 200", r"\[\[device\]\] class: must be text in quotes \(got 200\)"),
        ('class = "h200"', 'class = "h200"\npool = "chat"', r"must be 'serving', 'rollout' or 'train' \(got 'chat'\)"),
        ('currency = "USD"', 'currency = "EUR"', r"line 5: currency: unknown currency; .*convert .*\(got 'EUR'\)"),
        (
            "valid_to = 2026-03-01",
            "valid_to = 2026-03-02",
            r"line 17: .*'device h100-sxm' has two prices on 2026-03-01"
            ": the one of line 8 holds 2025-10-01 until 2026-03-02; end it with valid_to = 2026-03-01",
        ),
        ("valid_to = 2026-03-01", "", "the one of line 8 holds from 2025-10-01 on; end it with valid_to = 2026-03-01"),
        ("valid_from = 2026-03-01", "valid_from = 2025-10-01", "this one from 2025-10-01 on; keep one, or give them"),
        ("valid_to = 2026-03-01", "valid_to = 2025-10-01", "line 13: .*valid_to: must be after valid_from 2025-10-01"),
        ("valid_to = 2026-03-01", 'valid_to = "soon"', r"valid_to: must be a date.*got 'soon'"),
        ("valid_to = 2026-03-01", "valid_to = 2026-03-01T10:00:00Z", r"valid_to: must be a date"),
        ("valid_to = 2026-03-01", "valid_to = 2026-02-30", "not valid TOML: .*line 13"),
        ("pue = 1.25", "pue = 0.9", r"\[electricity\] pue: must be 1 or more.*got 0\.9"),
        ("load_w = 680", "load_w = 200", r"\[\[power\]\]: load_w 200 must be at least idle_w 267"),
        ('route = "internet"', 'route = "loopback"', "'transfer loopback' is given twice for the same days"),
        ("violation_usd = 0", "", r"line \d+: \[lending\] violation_usd: is missing"),
        ("idle_anyway = true", "idle_anyway = 1.2", r"idle_anyway: must be a probability from 0 to 1.*got 1.2"),
        ("idle_anyway = true", "idle_anyway = 0.9\nidle_anyway_low = 0.8", r"one of idle_anyway_low and"),
        ("idle_anyway = true", "idle_anyway_low = 0.8\nidle_anyway_high = 1", r"idle_anyway_low and no idle_anyway"),
        ("idle_anyway = true", "idle_anyway = 0.9\nidle_anyway_low = 0.95\nidle_anyway_high = 1", r"must lie between"),
        ('commitment = "1-year reserved"', 'commitment = "1-year reserved"\nbought_in_hours = 0', r"must be above 0"),
        ("idle_anyway = true", 'idle_anyway = "yes"', r"idle_anyway: must be a probability.*got 'yes'"),
        ('version = "2026-11-22"', 'version = ""', r"line 4: version: must not be empty \(got ''\)"),
        ('name = "example"', 'name = "example"\nsha256 = "0"', "line 4: sha256: unknown key"),
        ('name = "example"', 'name = "example"\nelectrcity = 1', r"unknown key; did you mean electricity\?"),
        ("[electricity]", "[electricity", "not valid TOML"),
        ("[electricity]", "[tokens]", r"not valid TOML: Cannot .*write \[\[\.\.\.\]\] before each"),
    ],
)
def test_a_wrong_book_is_refused_with_line_field_value_and_what_to_do(old: str, new: str, says: str) -> None:
    assert old in EXAMPLE
    assert re.search(says, faults(EXAMPLE.replace(old, new, 1)))


def test_everything_wrong_is_said_at_once_in_the_order_of_lines() -> None:
    text = EXAMPLE.replace('currency = "USD"', 'currency = "DKK"').replace("usd_per_hour = 1.70", "usd_per_hour = -1")
    text = text.replace("pue = 1.25", "pue = nan").replace("valid_to = 2026-03-01", "valid_to = 2027-03-01")
    message = faults(text).splitlines()[1:]
    # The overlap is found although the first price has another fault.
    assert [line.split(":")[0].strip() for line in message] == [
        "line 5",
        "line 10",
        "line 17",
        f"line {number('pue', text)}",
    ]


def number(key: str, text: str) -> int:
    return next(index for index, line in enumerate(text.splitlines(), 1) if line.startswith(f"{key} ="))


def test_a_table_that_is_missing_or_no_table_is_refused() -> None:
    message = faults('name = "n"\nversion = "1"\ncurrency = "USD"\ntransfer = 5\ndevice = []\n')
    assert "line 4: [[transfer]]: must be a table" in message
    for table in ("device", "electricity", "lending", "tokens"):
        assert re.search(rf"(\b|\[\[){table}(\]\])?: is missing; add", message), table


def test_lines_are_left_out_where_the_layout_hides_them() -> None:
    text = EXAMPLE.replace('class = "h200"\nusd_per_hour = 2.50', 'class = "h200"\n"usd_per_hour" = -1')
    assert "line 25: [[device]] usd_per_hour: must be 0 or more" in faults(text)
    inline = '[{route = "a", usd_per_gb = 0}, {route = "a", usd_per_gb = "x"}]'
    message = faults(f'name = "n"\nversion = "1"\ncurrency = "USD"\ntransfer = {inline}\n')
    assert "line 4: [[transfer]] usd_per_gb: must be a number" in message


@pytest.mark.parametrize("table", ["electricity", "lending", "tokens"])
def test_a_single_table_holds_always_and_several_need_dates(table: str) -> None:
    start = EXAMPLE.index(f"[{table}]\n")
    body = re.split(r"\n\n", EXAMPLE[start + len(table) + 3 :], maxsplit=1)[0]
    several = EXAMPLE.replace(f"[{table}]", f"[[{table}]]")
    assert pricebook.parse(several, "book.toml").entries(table) == pricebook.parse(EXAMPLE, "b").entries(table)
    assert f"{table!r} is given twice" in faults(f"{several}\n[[{table}]]\n{body}\n")
    message = faults(f"{several}\n[[{table}]]\nvalid_from = 2026-09-01\n{body}\n")
    assert f"{table!r} has two prices on 2026-09-01: the one of line" in message
    assert "holds always; end it with valid_to = 2026-09-01" in message
    ended = several.replace(f"[[{table}]]", f"[[{table}]]\nvalid_to = 2026-09-01")
    assert len(pricebook.parse(f"{ended}\n[[{table}]]\nvalid_from = 2026-09-01\n{body}\n", "b").entries(table)) == 2


def test_what_differs_in_pool_commitment_or_name_does_not_overlap() -> None:
    price = f'usd_per_hour = 1\ncommitment = "c"\nvalid_from = 2026-05-01\n{CITED}'
    more = "".join(f'\n[[device]]\nclass = "h200"\npool = "{pool}"\n{price}' for pool in ("serving", "rollout"))
    more += f'\n[[verifier]]\nname = "judge"\nusd_per_verdict = 0.01\n{CITED}'
    assert len(pricebook.parse(EXAMPLE + more, "book.toml").device) == 6
    again = f'\n[[offer]]\nclass = "h200"\ncommitment = "spot"\nusd_per_hour = 1\nvalid_from = 2026-09-01\n{CITED}'
    assert "'offer h200 spot' has two prices on 2026-09-01" in faults(EXAMPLE + again)
    pools = more.replace('"serving"', '"rollout"')
    assert "'device h200 rollout' is given twice" in faults(EXAMPLE + pools)


def test_a_long_price_overlaps_every_later_one() -> None:
    def price(first: str, end: str) -> str:
        dates = f"valid_from = {first}\nvalid_to = {end}\n"
        return f'\n[[transfer]]\nroute = "ship"\nusd_per_gb = 1\n{dates}{CITED}'

    text = EXAMPLE + price("2026-01-01", "2027-01-01") + price("2026-02-01", "2026-03-01")
    message = faults(text + price("2026-05-01", "2026-06-01"))
    assert "on 2026-02-01" in message
    assert "on 2026-05-01" in message


def test_the_faults_that_the_documentation_shows_are_those_that_are_said() -> None:
    document = (Path(__file__).parents[3] / "docs" / "price-books.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)[0]
    (book, *_) = re.findall(r"^```toml\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    wrong = book.replace("usd_per_hour = 2.10", 'usd_per_hour = "2.10"').replace("idle_w = 1\n", "idle_watts = 1\n")
    wrong += "\n[[verifier]]\n" + wrong.split("[[verifier]]\n")[1].replace("usd", "valid_from = 2026-09-01\nusd", 1)
    with pytest.raises(PriceBookError) as caught:
        pricebook.parse(wrong, "prices.toml")
    assert str(caught.value).splitlines() == shown.splitlines()


RATE = '\n[[exchange_rate]]\ncurrency = "EUR"\nusd_per_unit = 1.08\nvalid_from = 2026-01-01\n' + CITED


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"EUR"', '"euro"', r"\[\[exchange_rate\]\] currency: must be the three capital letters .*got \'euro\'"),
        ('"EUR"', '"USD"', r"currency: must be another currency than the book's own \(got 'USD'\)"),
        ("1.08", "0", r"usd_per_unit: must be above 0: dollars for one unit of the currency \(got 0\)"),
        ("1.08", "-1.08", r"usd_per_unit: must be above 0.*got -1\.08"),
        ("1.08", '"1.08"', r"usd_per_unit: must be a number, without quotes"),
        ("valid_from = 2026-01-01", "", r"valid_from: is missing"),
        ("valid_from = 2026-01-01", "valid_from = 2026-01-01\nlow_share = 0.9\nhigh_share = 1.1", "is taken as known"),
        (RATE, RATE * 2, "'exchange_rate EUR' is given twice for the same days"),
    ],
)
def test_a_rate_of_exchange_that_is_none_is_refused(old: str, new: str, says: str) -> None:
    assert re.search(says, faults(EXAMPLE + RATE.replace(old, new)))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fiscal_start = 13", r"line 6: fiscal_start: must be a month from 1 to 12.*got 13"),
        ('fiscal_start = "02-01"', r"line 6: fiscal_start: must be a month from 1 to 12.*got '02-01'"),
        ('vresion = "2"', r"line 6: vresion: unknown key; did you mean version\?"),
    ],
)
def test_what_stands_at_the_top_is_checked(line: str, says: str) -> None:
    head = 'currency = "USD"\n'
    assert re.search(says, faults(EXAMPLE.replace(head, f"{head}{line}\n", 1)))


def test_a_rate_holds_from_its_first_day_until_before_its_last() -> None:
    until = RATE.replace("valid_from = 2026-01-01", "valid_from = 2026-01-01\nvalid_to = 2026-02-01")
    book = pricebook.parse(EXAMPLE + until, "book.toml")
    begin_ns, end_ns = (midnight_ns(date(2026, month, 1)) or 0 for month in (1, 2))
    assert str(book.exchange_rate_at("EUR", begin_ns).usd_per_unit) == "1.08"
    for ns in (begin_ns - 1, end_ns):
        with pytest.raises(PriceBookError, match="no rate of exchange for EUR"):
            book.exchange_rate_at("EUR", ns)
