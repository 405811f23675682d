"""The rule that chooses a price book: the one that the command names, or the ledger has adopted, or all runs name, or
the environment names. An example that all runs name comes last."""

import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rose.clock import utc_us
from rose.ledger.files.catalog import Connection
from rose.ledger.ledger import Ledger
from rose.pricing.money import NothingChargedError, PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook, PriceBookError, refuse_example
from rose.pricing.query import rows, set_variables

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
WAYS = f"Name one with `-b FILE`, for a look at made-up prices `-b example`. {BEFOREHAND}"


class NoPriceBookError(PricingError):
    """No price book can be chosen, because none is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    """A price book that prices the ledger from `adopted_us`, in UTC microseconds since the Unix epoch."""

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
    return Adoption(**{field.name: recorded[-1][field.name] for field in dataclasses.fields(Adoption)})


def adopt(ledger: Ledger, book: PriceBook, *, by: str) -> Adoption:
    """Price the ledger with this book from now on. Raises PricingError for example prices, and LedgerError."""
    refuse_example(book, "adoption")
    with ledger.lock("closing"):
        if (last := adopted(ledger)) is not None and last.text == book.text:
            return last
        adoption = Adoption(
            name=book.name, version=book.version, sha256=book.sha256, text=book.text, adopted_us=utc_us(), adopted_by=by
        )
        ledger.record_in_books(ADOPTED, dataclasses.asdict(adoption), adoption.adopted_us)
    return adoption


def choose(
    ledger: Ledger,
    price_book: str | Path | PriceBook | None = None,
    *,
    run_id: str | None = None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    provenance: str | None = None,
    own: Callable[[], Own] | None = None,
) -> PriceBook:
    """Return the price book for `run_id`, or for all runs of a provenance with a device in [from_ns, to_ns), UTC.
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
            named_by_runs = own_books(connection, run_id, from_ns, to_ns, provenance)
    if len(named_by_runs) == 1:
        ((name, (runs, sha256s)),) = named_by_runs.items()
        if name is not None and not pricebook.is_example(name):
            return chosen(_load_own(name, runs, sha256s), RUNS_OWN)
    if (book := _configured()) is not None:
        return book
    if any(name is not None and not pricebook.is_example(name) for name in named_by_runs):
        listed = "; ".join(f"{', '.join(runs)}: {name or 'none'}" for name, (runs, _) in named_by_runs.items())
        raise PricingError(f"the runs name different price books ({listed}), and one bill has one. {WAYS}")
    if len(named_by_runs) == 1 and None not in named_by_runs:
        ((example, _),) = named_by_runs.items()
        return chosen(pricebook.load(str(example)), RUNS_OWN)
    if not named_by_runs and run_id is None and from_ns is not None and to_ns is not None:
        raise NothingChargedError(f"no run lies in {Period(from_ns, to_ns).label}, so nothing is charged")
    of_run = "" if run_id is None else f" for run {run_id}"
    raise NoPriceBookError(f"no price book{of_run}: nothing can be priced. {WAYS}")


def named(name_or_path: str | Path) -> PriceBook:
    """Return the price book that a command names by shipped name or path. Raises PriceBookError."""
    return chosen(pricebook.load(name_or_path), NAMED)


def choose_for_new_run(ledger: Ledger | None, named: str | None) -> PriceBook | None:
    """Return the price book for a new run, or None. Raises PriceBookError or LedgerError."""
    if named is not None:
        return chosen(pricebook.load(named), RUNS_OWN)
    return (None if ledger is None else _adopted(ledger)) or _configured()


def chosen(book: PriceBook, rule: str) -> PriceBook:
    return book.model_copy(update={"chosen": rule})


def _adopted(ledger: Ledger) -> PriceBook | None:
    if (adoption := adopted(ledger)) is None:
        return None
    source = f"adopted by {adoption.adopted_by}"
    return chosen(pricebook.parse(adoption.text, source), source)


def _configured() -> PriceBook | None:
    name = os.environ.get(VARIABLE)
    return chosen(pricebook.load(name), CONFIGURED) if name else None


def own_books(
    connection: Connection,
    run_id: str | None,
    from_ns: int | None = None,
    to_ns: int | None = None,
    provenance: str | None = None,
) -> Own:
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
        return pricebook.parse(_recorded_text(name, sha256s), name)
    except PriceBookError as error:
        more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
        raise PriceBookError(f"the price book of run {runs[0]}{more} cannot be used: {error}\n{WAYS}") from None


def _recorded_text(name: str, sha256s: set[str | None]) -> str:
    """Return the text of a price book file that a ledger names. A ledger's writer must not choose which files a reader
    opens: PriceBookError unless it is a regular .toml file of at most 1 MiB with the recorded SHA-256."""
    sha256 = next(iter(sha256s)) if len(sha256s) == 1 else None
    if sha256 is None:
        several = "several SHA-256 of it" if len(sha256s) > 1 else "no SHA-256 of it"
        raise PriceBookError(f"the ledger has {several}, so {name} is not opened; name the book with `-b FILE`")
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
            f"{name} is not the file that the run began with (SHA-256 {sha256}); if it is to "
            "hold, name it with `-b FILE`"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PriceBookError(f"price book {name} is not UTF-8 text: {error}") from None
