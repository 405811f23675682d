"""The cost of a period by up to six dimensions. The lines sum to the bill, exact to the nano-dollar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from rose.clock import utc
from rose.errors import did_you_mean
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges.pricing import exact, total
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.bill import STATES, Bill, bill
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, Stamp
from rose.pricing.money import QuestionError
from rose.pricing.period import Period, instant
from rose.pricing.price_books.entries import tagging
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.query import rows, set_variables
from rose.pricing.spend.calendar import Calendar

TIMES: tuple[str, ...] = ("day", "week", "month", "quarter", "year")
BY: tuple[str, ...] = (*charge_algebra.BY, *TIMES)
VIEWS: Mapping[str, str] = {view.replace(" ", "-"): view for view in (AMORTIZED, FULLY_LOADED)}
DIMENSIONS_MAX = 6
_TAG = "tag:"
_DEVICE = ("device_id", "hardware_id", "pool", "device_class")
_AMOUNTS = ("cost_nano", "ns", "tokens")
_SUMMED = ("closed_nano", "corrections_nano", "open_nano", "ns", "tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question about cost: a period, filters, and up to six dimensions (BY or `tag:NAME`). Raises QuestionError."""

    period: Period
    by: tuple[str, ...] = ()
    only: Mapping[str, str] = field(default_factory=dict)
    calendar: Calendar = field(default_factory=Calendar)
    provenance: str | None = None
    view: str = "amortized"
    close_id: str | None = None  # Only this close counts, as known at `as_of_ns`.
    as_of_ns: int | None = None

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise QuestionError(f"view {self.view!r} is not known; give one of {', '.join(VIEWS)}")
        known = [name for name in BY if name != "work" or self.view != "amortized"]
        for name in (*self.by, *self.only):
            if name not in known and not (name.startswith(_TAG) and name != _TAG):
                raise QuestionError(f"cost cannot be shown by {name!r}{did_you_mean(name, {*known, 'tag:NAME'})}")
        if len(self.by) > DIMENSIONS_MAX or len(set(self.by)) < len(self.by):
            raise QuestionError(f"--by is {', '.join(self.by)}: give one to {DIMENSIONS_MAX} dimensions, each once")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a `Cost`: its dimensions' values, and amounts. In the fully loaded view, `ns` and `tokens` are 0."""

    values: tuple[str, ...]
    closed_nano: int
    corrections_nano: int
    open_nano: int
    ns: int
    tokens: int

    @property
    def cost_nano(self) -> int:
        return self.closed_nano + self.corrections_nano + self.open_nano

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("cost_nano", *_SUMMED)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The answer to a question, in nano-dollars. `lines` sum to `total`. `bill_nano` is the bill without filters."""

    question: Question
    lines: tuple[Line, ...]
    total: Line
    bill_nano: int
    stamp: Stamp
    closes: Mapping[str, int]
    open: tuple[Period, ...]

    @property
    def view(self) -> str:
        return VIEWS[self.question.view]

    def to_json(self) -> dict[str, Any]:
        question = self.question
        return {
            "view": self.view,
            **self.stamp.to_json(),
            "time_zone": question.calendar.tz,
            "by": list(question.by),
            "only": dict(question.only),
            "closes": [{"close_id": close_id, "corrections": count} for close_id, count in self.closes.items()],
            "open": [{"from": utc(gap.from_ns), "to": utc(gap.to_ns)} for gap in self.open],
            "bill_nano": self.bill_nano,
            "total": self.total.to_json(),
            "lines": [dict(zip(question.by, line.values, strict=True)) | line.to_json() for line in self.lines],
        }


def question(
    ledger: Ledger,
    *,
    now_ns: int,
    period: str | None = None,
    by: Sequence[str] | None = None,
    team: str | None = None,
    run: str | None = None,
    tag: str | None = None,
    view: str = "amortized",
    tz: str | None = None,
    provenance: str | None = None,
    close: str | None = None,
    as_of: str | None = None,
) -> Question:
    calendar = Calendar(tz or "UTC")
    only = {name: value for name, value in (("team", team), ("run", run)) if value is not None}
    if tag is not None:
        name, equals, value = tag.partition("=")
        if not (name and equals and value):
            raise QuestionError(f"tag {tag!r} is not a tag; write NAME=VALUE, such as project=maze")
        only[_TAG + name] = value
    if close is None and as_of is not None:
        raise QuestionError("`as-of` needs a close: give `close` too")
    if close is not None:
        if (period, provenance) != (None, None):
            raise QuestionError("a close has its own period and provenance: leave out period and provenance")
        first = store.of_close(ledger, close)[0]
        whole, provenance = first.period, first.provenance
    else:
        whole = calendar.period(period or "this-month", now_ns)
    return Question(
        period=whole,
        by=tuple(by or ("team",)),
        only=only,
        calendar=calendar,
        provenance=provenance,
        view=view,
        close_id=close,
        as_of_ns=None if as_of is None else instant(as_of, "as-of"),
    )


def ask(ledger: Ledger, question: Question, price_book: str | PriceBook | None = None) -> Cost:
    billed = bill(
        ledger,
        question.period,
        price_book,
        provenance=question.provenance,
        close_id=question.close_id,
        as_of_ns=question.as_of_ns,
    )
    return answer(billed, question)


def answer(billed: Bill, question: Question) -> Cost:
    charged = billed.rows if question.view == "amortized" else _fully_loaded(billed)
    names = [*question.by, *(name for name in question.only if name not in question.by)]
    dimensions = [_dimension(name, billed, charged, question.calendar) for name in names]
    grouped = charged.group_by("state", *(value.alias(name) for name, value in zip(names, dimensions, strict=True)))
    sums = grouped.agg(map(exact, _AMOUNTS)).collect(engine="streaming")
    whole_nano = total(sums)
    for name, value in question.only.items():
        known = set(sums[name])
        if value not in known:
            period = question.calendar.text(question.period)
            raise QuestionError(f"no charge of {period} has {name} {value!r}{did_you_mean(value, known)}")
        sums = sums.filter(pl.col(name) == value)
    lines = _lines(question, sums)
    together = Line(values=(), **{name: sum(getattr(line, name) for line in lines) for name in _SUMMED})
    assert question.only or together.cost_nano == whole_nano
    return Cost(
        question=question,
        lines=tuple(lines),
        total=together,
        bill_nano=whole_nano,
        stamp=billed.stamp,
        closes=billed.closes,
        open=billed.open,
    )


def unknown_team(ledger: Ledger, team: str) -> str | None:
    with ledger.connect() as connection:
        known = {str(row["team"]) for row in rows(connection, "spend/teams") if row["team"]}
    if team in known | {UNALLOCATED}:
        return None
    return f"no run of the ledger has the tag team {team!r}{did_you_mean(team, known)}"


def tags_of(tags_json: str) -> dict[str, str | None]:
    """Return the tags by name. If a name is repeated, its first tag counts."""
    tags: dict[str, Any] = json.loads(
        tags_json, object_pairs_hook=lambda pairs: dict(reversed(pairs)), parse_int=str, parse_float=str
    )
    return {
        name: value if value is None or isinstance(value, str) else json.dumps(value) for name, value in tags.items()
    }


def _fully_loaded(billed: Bill) -> pl.LazyFrame:
    before = billed.loaded
    opened = pl.any_horizontal(pl.lit(False), *(charge_algebra.in_period(gap) for gap in billed.open))
    parts = [before.with_columns(state=pl.when(opened).then(pl.lit("open")).otherwise(pl.lit("closed")))]
    if billed.corrections:
        parts += [charges.fully_load(billed.frame.drop("closed")).with_columns(state=pl.lit("correction"))]
        parts += [before.with_columns(state=pl.lit("correction"), loaded_nano=-pl.col("loaded_nano"))]
    return pl.concat(parts).lazy().with_columns(cost_nano="loaded_nano", ns=pl.lit(0), tokens=pl.lit(0))


def _dimension(name: str, billed: Bill, charged: pl.LazyFrame, calendar: Calendar) -> pl.Expr:
    if name in TIMES:
        # Names are looked up, not made for each charge.
        hours = {ns // 1000: names[name] for ns, names in calendar.hours(billed.period)}
        return pl.col("hour").dt.epoch("us").replace_strict(hours, return_dtype=pl.String)
    value = _tag(name.removeprefix(_TAG), billed, charged) if name.startswith(_TAG) else pl.col(charge_algebra.BY[name])
    return value.cast(pl.String).fill_null(UNALLOCATED)


def _tag(tag: str, billed: Bill, charged: pl.LazyFrame) -> pl.Expr:
    with billed.ledger.connect() as connection:
        set_variables(connection, provenance=billed.stamp.provenance)
        runs = {row["run_id"]: tags_of(row["tags_json"]) for row in rows(connection, "spend/run_tags")}
    entries = billed.newest_book.device_tag
    names = {name for own in runs.values() for name in own} | {name for entry in entries for name in entry.tags}
    if tag not in names:
        raise QuestionError(f"no run or device has the tag {tag!r}{did_you_mean(tag, names)}")
    of_run = {run_id: own.get(tag) for run_id, own in runs.items()}
    value = pl.col("run_id").replace_strict(of_run, default=None, return_dtype=pl.String)
    if not any(tag in entry.tags for entry in entries):
        return value
    own_tags = tagging(entries)
    devices = charged.select(_DEVICE).unique().collect().rows()
    of_device = {json.dumps(device): own_tags(*device).get(tag) for device in devices}
    key = pl.concat_list(pl.col(_DEVICE)).map_elements(lambda cells: json.dumps(cells.to_list()), pl.String)
    return pl.coalesce(value, key.replace_strict(of_device, default=None, return_dtype=pl.String))


def _lines(question: Question, sums: pl.DataFrame) -> list[Line]:
    """Return the lines, sorted by each dimension in turn. Dimensions in TIMES sort by time, others by falling cost."""
    cost, by = pl.col("cost_nano"), question.by
    states = [cost.filter(state=state).sum().alias(name) for state, name in zip(STATES, _SUMMED, strict=False)]
    # The constant is a key where no dimension is.
    lines = sums.group_by(pl.lit("").alias("all"), *by).agg(*states, cost.sum(), pl.col("ns", "tokens").sum())
    order: list[pl.Expr] = []
    for count, name in enumerate(by, 1):
        order += [pl.col(name)] if name in TIMES else [0 - cost.sum().over(*by[:count]), pl.col(name)]
    ordered = (lines.sort(order) if order else lines).select(*by, *_SUMMED).rows()
    return [Line(values=row[: len(by)], **dict(zip(_SUMMED, row[len(by) :], strict=True))) for row in ordered]
