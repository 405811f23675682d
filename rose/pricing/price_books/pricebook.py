"""The price book: a dated, versioned TOML file of what things cost, with the source of every figure.

Rates are `Decimal` and are never rounded here. A price that is missing is refused, never taken as zero. Every time is
UTC nanoseconds; an entry holds over [valid_from, valid_to) in whole UTC days.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from rose.pricing.price_books import reader
from rose.pricing.price_books.entries import (
    TABLES,
    DevicePrice,
    Electricity,
    Entry,
    Header,
    Lending,
    Offer,
    PowerFigure,
    PriceBookError,
    TokenPrices,
    TransferPrice,
    VerifierPrice,
    day_of,
)
from rose.pricing.price_books.rules import DeviceTag, ExchangeRate, VendorResource

__all__ = [
    "DevicePrice",
    "Electricity",
    "ExchangeRate",
    "Lending",
    "Offer",
    "PowerFigure",
    "PriceBook",
    "PriceBookError",
    "TokenPrices",
    "TransferPrice",
    "VerifierPrice",
    "load",
    "parse",
    "shipped",
]

E = TypeVar("E", bound=Entry)


class PriceBook(Header):
    """The whole file, as `parse` found it good. Lookups refuse what is missing with PriceBookError."""

    device: list[DevicePrice] = Field(min_length=1)
    offer: list[Offer] = Field(default_factory=list)
    power: list[PowerFigure] = Field(default_factory=list)
    electricity_prices: list[Electricity] = Field(alias="electricity", min_length=1)
    transfer: list[TransferPrice] = Field(default_factory=list)
    lending_terms: list[Lending] = Field(alias="lending", min_length=1)
    token_prices: list[TokenPrices] = Field(alias="tokens", min_length=1)
    verifier: list[VerifierPrice] = Field(default_factory=list)
    exchange_rate: list[ExchangeRate] = Field(default_factory=list)
    device_tag: list[DeviceTag] = Field(default_factory=list)
    vendor_resource: list[VendorResource] = Field(default_factory=list)

    #: SHA-256 of the file's text: two books of one name and version that differ are told apart by it.
    sha256: str = Field(default="", exclude=True)
    #: Where it was read from, for error messages.
    path: str = Field(default="", exclude=True)
    #: The file's text.
    text: str = Field(default="", exclude=True, repr=False)
    #: By which rule it was chosen, in words: see `rose.pricing.price_books.choice`.
    chosen: str = Field(default="", exclude=True)

    @property
    def example(self) -> bool:
        """Whether its prices are made up: a book that comes with ROSE, or a copy that still has its name."""
        return is_example(self.name)

    def entries(self, table: str) -> Sequence[Entry]:
        """Entries of a table of the file, in its order. Raises KeyError for a table that no book has."""
        by_table: dict[str, Sequence[Entry]] = {
            "device": self.device,
            "offer": self.offer,
            "power": self.power,
            "electricity": self.electricity_prices,
            "transfer": self.transfer,
            "lending": self.lending_terms,
            "tokens": self.token_prices,
            "verifier": self.verifier,
            "exchange_rate": self.exchange_rate,
            "device_tag": self.device_tag,
            "vendor_resource": self.vendor_resource,
        }
        return by_table[table]

    def device_at(self, device_class: str, pool: str, ns: int) -> DevicePrice:
        """Price of a device of a class in a pool at an instant; an entry for the pool goes before one without.

        Raises PriceBookError where the book has no such price.
        """
        of_class = [price for price in self.device if price.device_class == device_class]
        wanted = [price for price in of_class if price.pool is None or price.pool == pool]
        holding = [price for price in wanted if price.holds_at(ns)]
        if holding:
            # At most two hold, one of them for the pool.
            return max(holding, key=lambda price: price.pool is not None)
        message = f"price book {self.path} has no price for device class {device_class!r}"
        if not of_class:
            known = ", ".join(sorted({price.device_class for price in self.device}))
            raise PriceBookError(
                f'{message} (it has {known}); add a [[device]] with class = "{device_class}"{self._where}'
            )
        if not wanted:
            pools = ", ".join(sorted({str(price.pool) for price in of_class}))
            raise PriceBookError(
                f"{message} in pool {pool!r} (it has one for pool {pools}); add a [[device]] without a pool"
                f"{self._where}"
            )
        raise PriceBookError(
            f"{message} in pool {pool!r} on {day_of(ns)}; add a [[device]] whose valid_from and valid_to hold that day"
            f"{self._where}"
        )

    def offers_at(self, device_class: str, ns: int) -> tuple[Offer, ...]:
        """Market prices of a class at an instant, in the file's order; none where the book names none."""
        return tuple(offer for offer in self.offer if offer.device_class == device_class and offer.holds_at(ns))

    def power_of(self, device_class: str) -> PowerFigure:
        """Assumed power of a class. Raises PriceBookError if the book has none."""
        for figure in self.power:
            if figure.device_class == device_class:
                return figure
        raise PriceBookError(
            f"price book {self.path} has no [[power]] for device class {device_class!r} and the ledger has no meter "
            f"readings of its devices; add one{self._where}"
        )

    def electricity_at(self, ns: int) -> Electricity:
        """Tariff and PUE at an instant."""
        return self._at(self.electricity_prices, ns, "electricity")

    def lending_at(self, ns: int) -> Lending:
        """Terms of lending at an instant."""
        return self._at(self.lending_terms, ns, "lending")

    def tokens_at(self, ns: int) -> TokenPrices:
        """Serving's token prices at an instant."""
        return self._at(self.token_prices, ns, "tokens")

    def transfer_at(self, route: str, ns: int) -> TransferPrice:
        """Price of a route at an instant."""
        return self._at([p for p in self.transfer if p.route == route], ns, "transfer", f"route {route!r}")

    def verifier_at(self, name: str, ns: int) -> VerifierPrice:
        """Price of a verifier's verdict at an instant."""
        return self._at([p for p in self.verifier if p.name == name], ns, "verifier", f"verifier {name!r}")

    def exchange_rate_at(self, currency: str, ns: int) -> ExchangeRate:
        """Dollars for one unit of a currency at an instant."""
        for entry in self.exchange_rate:
            if entry.currency == currency and entry.holds_at(ns):
                return entry
        known = ", ".join(sorted({entry.currency for entry in self.exchange_rate})) or "none"
        raise PriceBookError(
            f"price book {self.path} has no rate of exchange for {currency} on {day_of(ns)} (currencies it has: "
            f'{known}); add an [[exchange_rate]] with currency = "{currency}" that holds that day{self._where}'
        )

    def change_times_ns(self) -> list[int]:
        """Every instant at which any price begins or ends, ascending."""
        return sorted(_edges_ns(chain.from_iterable(map(self.entries, TABLES))))

    def stretches(self, t0_ns: int, t1_ns: int) -> list[tuple[int, int]]:
        """[t0_ns, t1_ns) cut at every change: consecutive spans inside which no price of the book changes."""
        return _cut(t0_ns, t1_ns, self.change_times_ns())

    @property
    def _where(self) -> str:
        """Where what the book lacks is to be added: the end of a sentence."""
        return ", in a copy of the book with a `name` of your own" if self.example else ""

    def _at(self, entries: Iterable[E], ns: int, table: str, what: str = "") -> E:
        known = False
        for entry in entries:
            if entry.holds_at(ns):
                return entry
            known = True
        header = f"[[{table}]]" if what or known else f"[{table}]"
        subject, day = f" for {what}" if what else "", f" on {day_of(ns)}" if known else ""
        fix = "add one whose valid_from and valid_to hold that day" if known else "add one, 0 if it is free"
        raise PriceBookError(f"price book {self.path} has no {header}{subject}{day}; {fix}{self._where}")


@functools.cache
def shipped() -> tuple[str, ...]:
    """Names of the books in the package, all of whose prices are made up."""
    files = (item.name for item in resources.files("rose.pricing.price_books").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def is_example(name: str) -> bool:
    """Whether a price book of this name has made-up prices."""
    return name in shipped()


def load(name_or_path: str | Path) -> PriceBook:
    """Read and validate a price book: the name of one in the package, such as `example`, else a path.

    Raises PriceBookError naming the file and, for each wrong field, its line, name and value.
    """
    names = shipped()
    if str(name_or_path) in names:
        file = f"{name_or_path}.toml"
        text = resources.files("rose.pricing.price_books").joinpath(file).read_text("utf-8")
        return parse(text, f"{name_or_path} (rose/pricing/price_books/{file})")
    path = Path(name_or_path).expanduser()
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except OSError as error:
        near = difflib.get_close_matches(str(name_or_path), names, n=1)
        meant = f" Did you mean `{near[0]}`?" if near else ""
        raise PriceBookError(
            f"cannot read price book {path}: {error.strerror}.{meant} "
            f"Give a TOML file, or a book that comes with ROSE: {', '.join(names)}."
        ) from None
    except UnicodeDecodeError as error:
        raise PriceBookError(f"price book {path} is not UTF-8 text: {error}") from None


def parse(text: str, source: str) -> PriceBook:
    """Validate the text of a price book; `source` names it in errors. Raises PriceBookError with everything wrong."""
    book = PriceBook.model_validate(reader.read(text, source))
    return book.model_copy(update={"sha256": hashlib.sha256(text.encode()).hexdigest(), "path": source, "text": text})


def _edges_ns(entries: Iterable[Entry]) -> set[int]:
    return {ns for entry in entries for ns in (entry.from_ns, entry.to_ns) if ns is not None}


def _cut(t0_ns: int, t1_ns: int, edges_ns: Iterable[int]) -> list[tuple[int, int]]:
    if t0_ns >= t1_ns:
        return []
    return list(pairwise([t0_ns, *(ns for ns in sorted(edges_ns) if t0_ns < ns < t1_ns), t1_ns]))
