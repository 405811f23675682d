"""The entries of a price book. Each table of the file has a class, with its units and rules."""

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from rose.pricing.money import PricingError
from rose.pricing.period import day_of


class PriceBookError(PricingError):
    """A price book cannot be used, or a price is missing in it."""


DECIMALS_MAX = 12  # More decimals or digits are a mistake, or a float written out.
_DIGITS_MAX = 12
RATE_MAX = 1_000_000  # Dollars: a device-year at this rate fits into 64 bits of nano-dollars (9.2e9 dollars).


def number(value: object) -> Decimal:
    """Return a TOML integer or Decimal as Decimal. Raises ValueError for any other value."""
    # pydantic reports a ValueError with its field; a TypeError would escape.
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("must be a number such as 2.35, without quotes")
    exact = Decimal(value)
    if not exact.is_finite():
        raise ValueError("must be a finite number")
    if exact and exact.adjusted() >= _DIGITS_MAX:
        raise ValueError(f"must be below 1e{_DIGITS_MAX}; check the unit")
    exponent = exact.as_tuple().exponent
    if isinstance(exponent, int) and -exponent > DECIMALS_MAX:
        raise ValueError(f"has {-exponent} decimals, and a price has {DECIMALS_MAX} at most; round it")
    return exact


def rising(points: Sequence[tuple[Decimal, Decimal]]) -> Sequence[tuple[Decimal, Decimal]]:
    """Check the points (x, y), and return them. Raises ValueError if x does not grow, or if y falls."""
    for (low, from_y), (high, to_y) in pairwise(points):
        if high <= low:
            raise ValueError(f"points must be in ascending order: {high} comes after {low}")
        if to_y < from_y:
            raise ValueError(f"amounts must not fall: {to_y} at {high} after {from_y} at {low}")
    return points


_Number = Annotated[Decimal, BeforeValidator(number)]
Rate = Annotated[_Number, Field(ge=0, le=RATE_MAX)]
Share = Annotated[_Number, Field(ge=0, le=1)]
#: `true` is 1 and `false` 0.
Probability = Annotated[Share, BeforeValidator(lambda value: int(value) if isinstance(value, bool) else value)]
AtLeastOne = Annotated[_Number, Field(ge=1)]
Increment = Annotated[_Number, Field(gt=0)]
Curve = Annotated[  # (share, amount): straight lines between points, level before the first and after the last.
    tuple[Annotated[tuple[Share, Rate], Field(strict=False)], ...],
    Field(min_length=2, strict=False),
    AfterValidator(rising),
]


def _day(value: object) -> object:
    if isinstance(value, datetime) or not isinstance(value, date):
        raise ValueError("must be a date such as 2026-03-01, without quotes and without a time of day")
    return value


Day = Annotated[date, BeforeValidator(_day)]
Name = Annotated[str, Field(min_length=1)]
Pool = Literal["serving", "rollout", "train"]


class Entry(BaseModel):
    """A table of the file, valid over [valid_from, valid_to) in UTC days (None: no limit). If its figures are guesses,
    their 95% range is from `low_share` to `high_share` times the figure."""

    model_config = {"extra": "forbid", "frozen": True, "strict": True}

    key_fields: ClassVar[tuple[str, ...]] = ()  # Fields of `key`.
    may_be_a_guess: ClassVar[bool] = True  # Whether it may be a guess: prices that the fleet pays or asks are known.

    source: Name
    source_date: Day
    low_share: Share | None = None
    high_share: AtLeastOne | None = None

    @model_validator(mode="after")
    def _range_has_two_ends(self) -> Self:
        if (self.low_share is None) != (self.high_share is None):
            raise ValueError("has only one of low_share and high_share: a range needs both, such as 0.7 and 1.3")
        if self.low_share is not None and not self.may_be_a_guess:
            raise ValueError("has low_share and high_share, but its price is taken as known: leave them out")
        return self

    @property
    def days(self) -> tuple[date | None, date | None]:
        """Return the first day on which the entry is valid, and the day after the last one. None means no limit."""
        return None, None

    def holds_at(self, ns: int) -> bool:
        first, end = self.days
        day = day_of(ns)
        return (first is None or first <= day) and (end is None or day < end)

    @property
    def key(self) -> tuple[str, ...]:
        """Return what the entry prices, such as a device class. Entries with the same key must not overlap in time."""
        return tuple(value for field in self.key_fields if (value := getattr(self, field)) is not None)


class Dated(Entry):
    valid_from: Day | None = None
    valid_to: Day | None = None

    @property
    def days(self) -> tuple[date | None, date | None]:
        return self.valid_from, self.valid_to

    @field_validator("valid_to")
    @classmethod
    def _forwards(cls, valid_to: date | None, info: ValidationInfo) -> date | None:
        valid_from = info.data.get("valid_from")
        if valid_from is not None and valid_to is not None and valid_to <= valid_from:
            raise ValueError(f"must be after valid_from {valid_from}: valid_to is the first day without the price")
        return valid_to


class DevicePrice(Dated):
    """The price in USD of a device-hour, used or not. An entry with `pool` is preferred to an entry for all pools."""

    key_fields = ("device_class", "pool")
    may_be_a_guess = False

    device_class: Name = Field(alias="class")
    pool: Pool | None = None
    commitment: Name
    usd_per_hour: Rate
    bought_in_hours: Increment | None = None  # Least purchase, device-hours: 8760 for a year. Any time if left out.
    energy_included: bool = False  # The price covers power.
    valid_from: Day


class Offer(Dated):
    """A market price of a device-hour in USD, power included, for comparisons."""

    key_fields = ("device_class", "commitment")

    device_class: Name = Field(alias="class")
    commitment: Name
    usd_per_hour: Rate
    bought_in_hours: Increment | None = None  # Least purchase, hours of one device. By the time used if left out.
    interruptions_per_hour: Rate | None = None
    valid_from: Day


class PowerFigure(Entry):
    """The assumed watts of a device class, idle and at full load. In between, watts rise linearly with load."""

    key_fields = ("device_class",)

    device_class: Name = Field(alias="class")
    idle_w: Rate
    load_w: Rate

    @field_validator("load_w")
    @classmethod
    def _never_falls(cls, load_w: Decimal, info: ValidationInfo) -> Decimal:
        idle_w = info.data.get("idle_w")
        if idle_w is not None and load_w < idle_w:
            raise ValueError(f"must be at least idle_w {idle_w}")
        return load_w


class Electricity(Dated):
    """The tariff of electricity, and the power usage effectiveness: site watts per device watt."""

    usd_per_kwh: Rate
    pue: AtLeastOne


class TransferPrice(Dated):
    """The dollars for sending 1e9 bytes over a route."""

    key_fields = ("route",)

    route: Name
    usd_per_gb: Rate


class Lending(Dated):
    """The probability that the fleet would exist without leases, and costs of lending except energy and transfer."""

    idle_anyway: Probability | None = None  # Probability that the fleet would exist without leases.
    idle_anyway_low: Probability | None = None  # Low end of its 95% range.
    idle_anyway_high: Probability | None = None  # High end of its 95% range.
    scheduler_usd_per_lease_s: Rate
    kv_recompute_usd_per_million_tokens: Rate
    violation_usd: Rate  # SLO penalty for a serving request that misses its budget.
    latency_usd: Curve | None = None  # Cost of a request within its budgets: (larger share of a budget, dollars).
    interference_usd_per_device_hour: Rate | None = None  # Cost of an hour that serving works longer beside rollouts.
    held_memory_usd_per_gib_hour: Rate | None = None  # Cost of a rollout engine's KV memory on a device not lent.
    publish_usd_per_sync: Rate | None = None  # Cost of publishing a version to a serving device, beside transfer.

    @property
    def idle_anyway_range(self) -> tuple[Fraction, Fraction, Fraction] | None:
        """Return `idle_anyway` as (low, stated, high), or None if not stated. A missing end equals the stated value."""
        if self.idle_anyway is None:
            return None
        low, high = (self.idle_anyway if end is None else end for end in (self.idle_anyway_low, self.idle_anyway_high))
        return Fraction(low), Fraction(self.idle_anyway), Fraction(high)

    @model_validator(mode="after")
    def _figures_agree(self) -> Self:
        if (self.idle_anyway_low is None) != (self.idle_anyway_high is None):
            raise ValueError("has only one of idle_anyway_low and idle_anyway_high: a range needs both")
        if self.idle_anyway is None and self.idle_anyway_low is not None:
            raise ValueError("has idle_anyway_low but no idle_anyway: state the probability that lies in the range")
        if (ends := self.idle_anyway_range) is not None and not ends[0] <= ends[1] <= ends[2]:
            raise ValueError(f"idle_anyway {self.idle_anyway} must lie between idle_anyway_low and idle_anyway_high")
        if self.latency_usd is not None and self.latency_usd[-1][1] > self.violation_usd:
            raise ValueError(
                f"latency_usd ends at {self.latency_usd[-1][1]}, above violation_usd {self.violation_usd}: a request "
                "that keeps its budget would cost more than one that misses it"
            )
        return self


class TokenPrices(Dated):
    may_be_a_guess = False

    input_usd_per_million: Rate
    output_usd_per_million: Rate


class VerifierPrice(Dated):
    key_fields = ("name",)
    may_be_a_guess = False

    name: Name
    usd_per_verdict: Rate


class DeviceTag(Entry):
    """Tags for devices whose runs have no tags. `hardware` is a pattern such as `GPU-7*`."""

    key_fields = ("device", "pool", "device_class", "hardware")
    may_be_a_guess = False

    device: Name | None = None
    pool: Pool | None = None
    device_class: Name | None = Field(default=None, alias="class")
    hardware: Name | None = None
    tags: Annotated[dict[Name, Name], Field(min_length=1)]

    @property
    def key(self) -> tuple[str, ...]:
        """Return a key such as `pool=serving`. It names the field, as a device and a class may have the same name."""
        fields = type(self).model_fields
        chosen = ((fields[name].alias or name, getattr(self, name)) for name in self.key_fields)
        return tuple(f"{name}={value}" for name, value in chosen if value is not None)

    @property
    def place(self) -> tuple[object, ...]:
        """Return a sort key that puts the entry with the fewest devices first."""
        hardware = self.hardware or ""
        return not self.device, not hardware, -len(hardware), not self.device_class, not self.pool, self.key

    def names(self, device_id: str | None, hardware_id: str | None, pool: str | None, device_class: str | None) -> bool:
        return (
            self.device in (None, device_id)
            and self.pool in (None, pool)
            and self.device_class in (None, device_class)
            and (self.hardware is None or fnmatchcase(hardware_id or "", self.hardware))
        )

    @model_validator(mode="after")
    def _names_some(self) -> Self:
        if not self.key:
            raise ValueError("names no device: give one or more of device, pool, class and hardware")
        return self


def tagging(entries: Iterable[DeviceTag]) -> Callable[..., dict[str, str]]:
    """Return a function that returns a device's tags, from device_id, hardware_id, pool and device_class."""
    widest_first = sorted(entries, key=lambda entry: entry.place, reverse=True)

    def tags(device_id: str | None, hardware_id: str | None, pool: str, device_class: str) -> dict[str, str]:
        tags: dict[str, str] = {}
        for entry in widest_first:
            if entry.names(device_id, hardware_id, pool, device_class):
                tags |= entry.tags
        return tags

    return tags


class VendorResource(Entry):
    """The name, or a pattern of names, that a vendor's invoice uses for a device, hardware or a device class."""

    key_fields = ("resource", "sku")
    may_be_a_guess = False

    resource: Name | None = None
    sku: Name | None = None
    device: Name | None = None
    hardware: Name | None = None
    device_class: Name | None = Field(default=None, alias="class")

    @property
    def key(self) -> tuple[str, ...]:
        return ("sku", str(self.sku)) if self.resource is None else super().key

    @property
    def target(self) -> tuple[str, str]:
        """Return (kind, name). The kind is `device`, `devices` (a pattern of hardware) or `class`."""
        if self.device_class is not None:
            return "class", self.device_class
        name = self.device or self.hardware or ""
        return "devices" if any(mark in name for mark in "*?[") else "device", name

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        named = sum(name is not None for name in (self.device, self.hardware, self.device_class))
        if named != 1 or (self.resource is None and self.sku is None):
            raise ValueError("needs the vendor's resource or sku, and exactly one of device, hardware and class")
        return self


def span_of(start: date | None, end: date | None) -> str:
    """Return a text for the days from `start` to the day before `end`."""
    if start is None:
        return "always" if end is None else f"until {end}"
    return f"from {start} on" if end is None else f"{start} until {end}"
