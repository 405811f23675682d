"""The price book: a dated, versioned TOML file of what things cost, with the source of every figure.

Rates are `Decimal` and are never rounded here. A price that is missing is refused, never taken as zero.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from rose.pricing.money import PricingError


class PriceBookError(PricingError):
    """A price book that cannot be used, or a price it does not hold; names the file, the field and the value."""


def _exact(value: object) -> object:
    # TOML numbers arrive as int or Decimal (see `parse`); text or a bool would be a slip of the pen.
    # pydantic reports a ValueError with its field; a TypeError would escape.
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number, without quotes")
    return Decimal(value)


def _day(value: object) -> object:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("must be a date such as 2026-03-01, without quotes")
    return value


Rate = Annotated[Decimal, BeforeValidator(_exact), Field(ge=0, allow_inf_nan=False)]
Day = Annotated[date, BeforeValidator(_day)]
Name = Annotated[str, Field(min_length=1)]


class _Entry(BaseModel):
    """A table of the file: unknown keys are refused, and every figure has a source and its date."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    source: Name
    source_date: Day


class DevicePrice(_Entry):
    """Dollars for each hour a device of a class is provisioned, over [valid_from, valid_to) in UTC days."""

    device_class: Name = Field(alias="class")
    usd_per_hour: Rate
    commitment: Name
    valid_from: Day
    valid_to: Day | None = None

    @model_validator(mode="after")
    def _forwards(self) -> DevicePrice:
        if self.valid_to is not None and self.valid_to <= self.valid_from:
            raise ValueError(f"valid_to {self.valid_to} must be after valid_from {self.valid_from}")
        return self

    @property
    def from_ns(self) -> int:
        """First nanosecond of the price, UTC."""
        return _midnight_ns(self.valid_from)

    @property
    def to_ns(self) -> int | None:
        """First nanosecond after the price, UTC; None while it has no end."""
        return None if self.valid_to is None else _midnight_ns(self.valid_to)


class PowerFigure(_Entry):
    """Power of a device class with no meter, in watts."""

    device_class: Name = Field(alias="class")
    idle_w: Rate
    load_w: Rate

    @model_validator(mode="after")
    def _load_draws_more(self) -> PowerFigure:
        if self.load_w < self.idle_w:
            raise ValueError(f"load_w {self.load_w} must be at least idle_w {self.idle_w}")
        return self


class Electricity(_Entry):
    """Tariff, and power usage effectiveness: watts the site draws for each watt a device draws."""

    usd_per_kwh: Rate
    pue: Annotated[Rate, Field(ge=1)]


class TransferPrice(_Entry):
    """Dollars for each 1e9 bytes over a route."""

    route: Name
    usd_per_gb: Rate


class Lending(_Entry):
    """What lending adds beside energy and transfer, and whether the fleet would have existed without it."""

    idle_anyway: bool
    scheduler_usd_per_lease_s: Rate
    kv_recompute_usd_per_million_tokens: Rate
    violation_usd: Rate


class TokenPrices(_Entry):
    """Serving's prices for a million tokens."""

    input_usd_per_million: Rate
    output_usd_per_million: Rate


class PriceBook(BaseModel):
    """The whole file. `device_prices`, `power_of` and `transfer_of` look prices up and refuse what is missing."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Name
    version: Name
    currency: Literal["USD"]
    device: list[DevicePrice] = Field(min_length=1)
    power: list[PowerFigure] = Field(default_factory=list)
    electricity: Electricity
    transfer: list[TransferPrice] = Field(default_factory=list)
    lending: Lending
    tokens: TokenPrices

    #: SHA-256 of the file's text: two books of one name and version that differ are told apart by it.
    sha256: str = Field(default="", exclude=True)
    #: Where it was read from, for error messages.
    path: str = Field(default="", exclude=True)

    def device_prices(self, device_class: str, t0_ns: int, t1_ns: int) -> list[tuple[int, int, DevicePrice]]:
        """Prices of a class over [t0_ns, t1_ns), UTC, in order: (from_ns, to_ns, price), without a gap.

        Raises PriceBookError where a class or any part of the time has no price.
        """
        prices = sorted((p for p in self.device if p.device_class == device_class), key=lambda p: p.valid_from)
        if not prices:
            known = ", ".join(sorted({p.device_class for p in self.device}))
            raise PriceBookError(
                f"price book {self.path} has no price for device class {device_class!r} (it has {known}); "
                f'add a [[device]] with class = "{device_class}"'
            )
        covered: list[tuple[int, int, DevicePrice]] = []
        at_ns = t0_ns
        for price in prices:
            end_ns = t1_ns if price.to_ns is None else min(price.to_ns, t1_ns)
            if price.from_ns <= at_ns < end_ns:
                covered.append((at_ns, end_ns, price))
                at_ns = end_ns
        if at_ns < t1_ns:
            day = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).date()
            raise PriceBookError(
                f"price book {self.path} has no price for device class {device_class!r} on {day}; "
                "add a [[device]] whose valid_from and valid_to hold that day"
            )
        return covered

    def change_times_ns(self) -> list[int]:
        """Every instant at which some device price begins or ends, UTC nanoseconds, ascending."""
        ends = [price.to_ns for price in self.device if price.to_ns is not None]
        return sorted({price.from_ns for price in self.device} | set(ends))

    def power_of(self, device_class: str) -> PowerFigure:
        """Assumed power of a class. Raises PriceBookError if the book has none."""
        for figure in self.power:
            if figure.device_class == device_class:
                return figure
        raise PriceBookError(
            f"price book {self.path} has no [[power]] for device class {device_class!r} and the ledger has no meter "
            "readings of its devices; add one"
        )

    def transfer_of(self, route: str) -> TransferPrice:
        """Price of a route. Raises PriceBookError if the book has none."""
        for price in self.transfer:
            if price.route == route:
                return price
        raise PriceBookError(
            f"price book {self.path} has no [[transfer]] for route {route!r}; add one, 0 if it is free"
        )

    @model_validator(mode="after")
    def _no_two_prices_for_one_thing(self) -> PriceBook:
        in_order = sorted(self.device, key=lambda p: (p.device_class, p.valid_from))
        for earlier, later in pairwise(in_order):
            same = earlier.device_class == later.device_class
            if same and (earlier.valid_to is None or earlier.valid_to > later.valid_from):
                raise ValueError(
                    f"device class {later.device_class!r} has two prices on {later.valid_from}: end the one of "
                    f"{earlier.valid_from} with valid_to = {later.valid_from} or earlier"
                )
        for table, names in (
            ("power class", [p.device_class for p in self.power]),
            ("transfer route", [t.route for t in self.transfer]),
        ):
            for name in sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"{table} {name!r} appears {names.count(name)} times; keep one")
        return self


def load(name_or_path: str | Path) -> PriceBook:
    """Read and validate a price book: `example` for the one in the package, else a path.

    Raises PriceBookError naming the file and, for each wrong field, its line, name and value.
    """
    if str(name_or_path) == "example":
        source = "example (rose/pricing/books/example.toml)"
        return parse(resources.files("rose.pricing.books").joinpath("example.toml").read_text("utf-8"), source)
    path = Path(name_or_path).expanduser()
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise PriceBookError(
            f"cannot read price book {path}: {error.strerror}. Give a TOML file, or `example`."
        ) from None
    except UnicodeDecodeError as error:
        raise PriceBookError(f"price book {path} is not UTF-8 text: {error}") from None


def parse(text: str, source: str) -> PriceBook:
    """Validate the text of a price book; `source` names it in errors. Raises PriceBookError."""
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise PriceBookError(f"price book {source} is not valid TOML: {error}") from None
    for reserved in ("sha256", "path"):
        if reserved in data:
            raise PriceBookError(f"price book {source}: {reserved}: is worked out from the file; remove it")
    try:
        book = PriceBook.model_validate(data)
    except ValidationError as error:
        raise PriceBookError(f"price book {source}:\n{_explain(error, text)}") from None
    return book.model_copy(update={"sha256": hashlib.sha256(text.encode()).hexdigest(), "path": source})


def _explain(error: ValidationError, text: str) -> str:
    """One line for each wrong field: line of the file, path, what is wrong, and the value that was given."""
    lines = []
    for item in error.errors():
        loc = item["loc"]
        where = ".".join(str(part) for part in loc) or "(the file)"
        number = _line_of(loc, text)
        at = f"line {number}: " if number else ""
        given = "" if isinstance(item["input"], dict | list) else f" (got {_shown(item['input'])})"
        lines.append(f"  {at}{where}: {item['msg'].removeprefix('Value error, ')}{given}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    return str(value) if isinstance(value, Decimal | date) else repr(value)


def _line_of(loc: tuple[int | str, ...], text: str) -> int | None:
    """Line of the table or key that `loc` names, for the plain layout of a price book; None if it is not found."""
    table = str(loc[0]) if loc else ""
    nth = loc[1] if len(loc) > 1 and isinstance(loc[1], int) else 0
    key = next((part for part in reversed(loc[1:]) if isinstance(part, str)), None)
    header = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*\]\]?\s*(#.*)?$")
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if header.match(line)]
    if not starts:
        top = re.compile(rf"\s*{re.escape(table)}\s*=")
        return next((index + 1 for index, line in enumerate(lines) if table and top.match(line)), None)
    if nth >= len(starts):
        return None
    for index in range(starts[nth] + 1, len(lines)):
        if lines[index].lstrip().startswith("["):
            break
        if key and re.match(rf"\s*{re.escape(key)}\s*=", lines[index]):
            return index + 1
    return starts[nth] + 1


def _midnight_ns(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000_000
