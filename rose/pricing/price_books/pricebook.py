"""The price book: a TOML file of prices, with date, version and sources. Rates are `Decimal` and never rounded here. A
missing price is an error, not 0. `choose` looks for a book in this order: the command names it, the ledger adopted it,
all runs name it, ROSE_PRICE_BOOK names it. A book of example prices that all runs name comes last."""

import functools
import hashlib
import os
import stat
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date
from decimal import Decimal
from importlib import resources
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from rose.clock import utc_us
from rose.config import explain
from rose.errors import did_you_mean
from rose.ledger.files.catalog import Connection
from rose.ledger.ledger import Ledger
from rose.pricing.money import NothingChargedError, PricingError
from rose.pricing.period import Period, day_of, of_day
from rose.pricing.price_books.entries import (
    DevicePrice,
    DeviceTag,
    Electricity,
    Entry,
    Lending,
    Name,
    Offer,
    PowerFigure,
    PriceBookError,
    TokenPrices,
    TransferPrice,
    VendorResource,
    VerifierPrice,
    span_of,
)
from rose.pricing.query import rows, set_variables

__all__ = ["Offer", "PowerFigure", "PriceBook", "PriceBookError", "load", "parse", "shipped"]

EXAMPLE_PRICES = "EXAMPLE PRICES, not yours"

VARIABLE = "ROSE_PRICE_BOOK"

ADOPTED = "adopted"
NAMED, RUNS_OWN, CONFIGURED, FROZEN = "named for this", "the run's own", f"from {VARIABLE}", "frozen with the close"

#: By the book's name or path (None: no book), the runs that name it and the SHA-256 that they recorded.
Own = dict[str | None, tuple[list[str], set[str | None]]]

_LIMIT_BYTES = 2**20

BEFOREHAND = (
    f"Adopt a price book for the ledger with `rose price FILE --adopt`; or set {VARIABLE}=FILE, or "
    "`price_book` in the fleet file before a run."
)
WAYS = f"Name one with `-b FILE`, or see made-up prices with `-b example`. {BEFOREHAND}"

E = TypeVar("E", bound=Entry)


class _File(BaseModel):
    model_config = {"extra": "forbid", "frozen": True, "strict": True}

    name: Name
    version: Name
    currency: Literal["USD"]
    device: list[DevicePrice] = Field(min_length=1)
    offer: list[Offer] = Field(default_factory=list)
    power: list[PowerFigure] = Field(default_factory=list)
    electricity: list[Electricity] = Field(min_length=1)
    transfer: list[TransferPrice] = Field(default_factory=list)
    lending: list[Lending] = Field(min_length=1)
    tokens: list[TokenPrices] = Field(min_length=1)
    verifier: list[VerifierPrice] = Field(default_factory=list)
    device_tag: list[DeviceTag] = Field(default_factory=list)
    vendor_resource: list[VendorResource] = Field(default_factory=list)

    @property
    def tables(self) -> dict[str, list[Entry]]:
        return {name: value for name, value in self if isinstance(value, list)}

    @model_validator(mode="after")
    def _one_price_a_day(self) -> Self:
        for table, entries in self.tables.items():
            ordered = sorted(entries, key=lambda entry: (entry.key, entry.days[0] or date.min))
            for earlier, later in pairwise(ordered):
                if earlier.key == later.key and (earlier.days[1] or date.max) > (later.days[0] or date.min):
                    what = " ".join((table, *later.key))
                    raise ValueError(
                        f"{what} has two entries for one day: one is valid {span_of(*earlier.days)}, another "
                        f"{span_of(*later.days)}; keep one, or give them dates that do not overlap"
                    )
        return self


class PriceBook(_File):
    """A valid price book. A lookup raises PriceBookError if the price is missing."""

    sha256: str = Field(default="", exclude=True)
    path: str = Field(default="", exclude=True)
    text: str = Field(default="", exclude=True, repr=False)
    chosen: str = Field(default="", exclude=True)  # The rule of `choose`, in words.

    @property
    def example(self) -> bool:
        """Return whether the prices are made up, as in a book that comes with ROSE, or in a copy that kept its name."""
        return is_example(self.name)

    def device_at(self, device_class: str, pool: str, ns: int) -> DevicePrice:
        """Return the price of a device at `ns`. An entry for `pool` is preferred to an entry for all pools."""
        of_class = [price for price in self.device if price.device_class == device_class]
        wanted = [price for price in of_class if price.pool is None or price.pool == pool]
        holding = [price for price in wanted if price.holds_at(ns)]
        if holding:
            return max(holding, key=lambda price: price.pool is not None)
        if not of_class:
            lack = f" (it has {', '.join(sorted({price.device_class for price in self.device}))})"
            fix = f'with class = "{device_class}"'
        elif not wanted:
            pools = ", ".join(sorted({str(price.pool) for price in of_class}))
            lack, fix = f" in pool {pool!r} (it has one for pool {pools})", "without a pool"
        else:
            lack, fix = f" in pool {pool!r} on {day_of(ns)}", "whose valid_from and valid_to include that day"
        raise PriceBookError(
            f"price book {self.path} has no price for device class {device_class!r}{lack}; add a [[device]] {fix}"
            f"{self._where}"
        )

    def offers_at(self, device_class: str, ns: int) -> tuple[Offer, ...]:
        return tuple(offer for offer in self.offer if offer.device_class == device_class and offer.holds_at(ns))

    def power_of(self, device_class: str) -> PowerFigure:
        for figure in self.power:
            if figure.device_class == device_class:
                return figure
        raise PriceBookError(
            f"price book {self.path} has no [[power]] for device class {device_class!r}, and the ledger has no meter "
            f"readings of this class; add a [[power]]{self._where}"
        )

    def electricity_at(self, ns: int) -> Electricity:
        return self._at(self.electricity, ns, "electricity")

    def lending_at(self, ns: int) -> Lending:
        return self._at(self.lending, ns, "lending")

    def tokens_at(self, ns: int) -> TokenPrices:
        return self._at(self.tokens, ns, "tokens")

    def transfer_at(self, route: str, ns: int) -> TransferPrice:
        return self._at([p for p in self.transfer if p.route == route], ns, "transfer", f"route {route!r}")

    def verifier_at(self, name: str, ns: int) -> VerifierPrice:
        return self._at([p for p in self.verifier if p.name == name], ns, "verifier", f"verifier {name!r}")

    def change_times_ns(self) -> list[int]:
        entries = chain.from_iterable(self.tables.values())
        return sorted({of_day(day).from_ns for entry in entries for day in entry.days if day is not None})

    def stretches(self, t0_ns: int, t1_ns: int) -> list[tuple[int, int]]:
        if t0_ns >= t1_ns:
            return []
        return list(pairwise([t0_ns, *(ns for ns in self.change_times_ns() if t0_ns < ns < t1_ns), t1_ns]))

    @property
    def _where(self) -> str:
        return ", in a copy of the book with a `name` of your own" if self.example else ""

    def _at(self, entries: Sequence[E], ns: int, table: str, what: str = "") -> E:
        known = bool(entries)
        for entry in entries:
            if entry.holds_at(ns):
                return entry
        header = f"[[{table}]]" if what or known else f"[{table}]"
        subject, day = f" for {what}" if what else "", f" on {day_of(ns)}" if known else ""
        fix = "add one whose valid_from and valid_to include that day" if known else "add one, 0 if it is free"
        raise PriceBookError(f"price book {self.path} has no {header}{subject}{day}; {fix}{self._where}")


@functools.cache
def shipped() -> tuple[str, ...]:
    files = (item.name for item in resources.files("rose.pricing.price_books").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def is_example(name: str) -> bool:
    return name in shipped() or name.startswith("example-")


def refuse_example(book: PriceBook, act: str) -> None:
    if book.example:
        raise PricingError(
            f"{act} is refused with price book {book.name!r}: {EXAMPLE_PRICES}. Write your own rates into a copy of "
            "it, give it a `name` of your own, check it with `rose price FILE`, and name it with `-b FILE` or "
            "adopt it with `rose price FILE --adopt`"
        )


def load(name_or_path: str | Path) -> PriceBook:
    """Return the book that comes with ROSE under this name, or the book at this path. Raises PriceBookError."""
    names = shipped()
    if str(name_or_path) in names:
        file = f"{name_or_path}.toml"
        text = resources.files("rose.pricing.price_books").joinpath(file).read_text("utf-8")
        return parse(text, f"{name_or_path} (rose/pricing/price_books/{file})")
    path = Path(name_or_path).expanduser()
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except OSError as error:
        raise PriceBookError(
            f"cannot read price book {path}: {error.strerror}. Give a TOML file, or a book that comes with ROSE"
            f"{did_you_mean(str(name_or_path), names)}"
        ) from None
    except UnicodeDecodeError as error:
        raise PriceBookError(f"price book {path} is not UTF-8 text: {error}") from None


def parse(text: str, source: str) -> PriceBook:
    """Return the price book in a text. Raises PriceBookError, which names `source` and each wrong field."""
    try:
        data = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        again = "; for several entries of one table write [[...]] before each" if "Cannot" in str(error) else ""
        raise PriceBookError(f"price book {source} is not valid TOML: {error}{again}") from None
    except (ValueError, ArithmeticError):
        raise PriceBookError(f"price book {source} has a number too long for any price; shorten it") from None
    tables = {name: [value] for name, value in data.items() if isinstance(value, dict)}
    try:
        _File.model_validate(data | tables)
        book = PriceBook.model_validate(data | tables)
    except ValidationError as error:
        raise PriceBookError(f"price book {source}:\n{explain(error, _File)}") from None
    return book.model_copy(update={"sha256": hashlib.sha256(text.encode()).hexdigest(), "path": source, "text": text})


class NoPriceBookError(PricingError):
    """No price book can be chosen, because none is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """A price book that prices the ledger from the time `adopted_us` on (UTC microseconds since the Unix epoch)."""

    name: str
    version: str
    sha256: str
    text: str
    adopted_us: int
    adopted_by: str


def adopted(ledger: Ledger) -> Adoption | None:
    """Return the price book that was adopted last, or None. Raises LedgerError."""
    recorded = ledger.book_details(ADOPTED)
    if not recorded:
        return None
    return Adoption(**{field.name: recorded[-1][field.name] for field in fields(Adoption)})


def adopt(ledger: Ledger, book: PriceBook, *, by: str) -> Adoption:
    """Price the ledger with this book from now on. Raises PricingError if its prices are examples, and LedgerError."""
    refuse_example(book, "adoption")
    with ledger.lock("closing"):
        if (last := adopted(ledger)) is not None and last.text == book.text:
            return last
        adoption = Adoption(
            name=book.name, version=book.version, sha256=book.sha256, text=book.text, adopted_us=utc_us(), adopted_by=by
        )
        ledger.record_in_books(ADOPTED, asdict(adoption), adoption.adopted_us)
    return adoption


def choose(
    ledger: Ledger,
    price_book: str | Path | PriceBook | None = None,
    *,
    run_id: str | None = None,
    period: Period | None = None,
    provenance: str | None = None,
    own: Callable[[], Own] | None = None,
) -> PriceBook:
    """Return the price book of `run_id`, or if this is None, of all runs of `provenance` with a device in `period`.
    `price_book` is the book that a command names. The docstring of the module has the order of choice.
    Raises NoPriceBookError, NothingChargedError, PricingError, PriceBookError or LedgerError."""
    if isinstance(price_book, PriceBook):
        return price_book
    if price_book is not None:
        return named(price_book)
    if (book := _adopted(ledger)) is not None:
        return book
    if own is not None:
        named_by_runs = own()
    else:
        with ledger.connect() as connection:
            named_by_runs = own_books(connection, run_id, period, provenance)
    single = next(iter(named_by_runs)) if len(named_by_runs) == 1 else None
    if single is not None and not is_example(single):
        return chosen(_load_own(single, *named_by_runs[single]), RUNS_OWN)
    if (book := _configured()) is not None:
        return book
    if any(name is not None and not is_example(name) for name in named_by_runs):
        listed = "; ".join(f"{', '.join(runs)}: {name or 'none'}" for name, (runs, _) in named_by_runs.items())
        raise PricingError(f"the runs name different price books ({listed}), but a bill needs a single one. {WAYS}")
    if single is not None:
        return chosen(load(single), RUNS_OWN)
    if not named_by_runs and run_id is None and period is not None:
        raise NothingChargedError(f"no run lies in {period.label}, so nothing is charged")
    of_run = "" if run_id is None else f" for run {run_id}"
    raise NoPriceBookError(f"no price book{of_run}: nothing can be priced. {WAYS}")


def named(name_or_path: str | Path) -> PriceBook:
    """Return the price book that a command names, by the name of a shipped book or by a path. Raises PriceBookError."""
    return chosen(load(name_or_path), NAMED)


def choose_for_new_run(ledger: Ledger | None, named: str | None) -> PriceBook | None:
    """Return the price book for a new run, or None. Raises PriceBookError or LedgerError."""
    if named is not None:
        return chosen(load(named), RUNS_OWN)
    return (None if ledger is None else _adopted(ledger)) or _configured()


def chosen(book: PriceBook, rule: str) -> PriceBook:
    return book.model_copy(update={"chosen": rule})


def _adopted(ledger: Ledger) -> PriceBook | None:
    if (adoption := adopted(ledger)) is None:
        return None
    source = f"adopted by {adoption.adopted_by}"
    return chosen(parse(adoption.text, source), source)


def _configured() -> PriceBook | None:
    name = os.environ.get(VARIABLE)
    return chosen(load(name), CONFIGURED) if name else None


def own_books(
    connection: Connection, run_id: str | None, period: Period | None = None, provenance: str | None = None
) -> Own:
    from_ns, to_ns = (None, None) if period is None else (period.from_ns, period.to_ns)
    set_variables(connection, run_id=run_id, from_ns=from_ns, to_ns=to_ns, provenance=provenance)
    runs_with_books = rows(connection, "run/price_books")
    own: Own = {}
    if any(row["price_book"] for row in runs_with_books) and run_id is not None:
        # An RL run without a book uses the book of its fleet.
        runs_with_books = [row for row in runs_with_books if row["price_book"]]
    for row in runs_with_books:
        runs, sha256s = own.setdefault(row["price_book"], ([], set()))
        runs.append(row["run_id"])
        sha256s.add(row["sha256"])
    return own


def _load_own(name: str, runs: list[str], sha256s: set[str | None]) -> PriceBook:
    try:
        return parse(_recorded_text(name, sha256s), name)
    except PriceBookError as error:
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        raise PriceBookError(f"the price book of run {runs[0]}{more} cannot be used: {error}\n{WAYS}") from None


def _recorded_text(name: str, sha256s: set[str | None]) -> str:
    """Return the text of a price book file that a ledger names. It must be a regular .toml file of at most 1 MiB with
    the recorded SHA-256: a ledger's writer must not choose which files a reader opens. Raises PriceBookError."""
    sha256 = next(iter(sha256s)) if len(sha256s) == 1 else None
    if sha256 is None:
        several = "several SHA-256" if len(sha256s) > 1 else "no SHA-256"
        raise PriceBookError(f"{name} is not opened: it has {several} in the ledger; name the book with `-b FILE`")
    try:
        if not name.endswith(".toml"):
            raise PriceBookError(f"{name} is not opened: its name does not end in .toml; name the book with `-b FILE`")
        # Opening a FIFO would wait for a writer.
        with os.fdopen(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(_LIMIT_BYTES + 1) if regular else b""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise PriceBookError(f"cannot read price book {name}: {reason}") from None
    if not regular or len(content) > _LIMIT_BYTES:
        raise PriceBookError(
            f"{name} is not a regular file of at most {_LIMIT_BYTES} bytes; name the book with `-b FILE`"
        )
    if hashlib.sha256(content).hexdigest() != sha256:
        raise PriceBookError(
            f"{name} is not the file that the run began with (SHA-256 {sha256}); to "
            "use it anyway, name it with `-b FILE`"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PriceBookError(f"price book {name} is not UTF-8 text: {error}") from None
