"""Hours that were closed more than once, such as those of a week in a month: which close counts, and how they differ.

Each close is whole in itself: priced by one book from the ledger as it was then. In a bill every hour counts once, in
the close that was made last. What that one charges otherwise for hours that were closed before, because of late events
or another book, is recorded in it, so that the closes of a period reconcile to the nano-dollar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import polars as pl

from rose.clock import utc
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.period import Period, naive
from rose.pricing.closing.records import Covered, Posting
from rose.pricing.money import PricingError

Postings = Mapping[str, Sequence[Posting]]


def counting(posted: Postings, provenance: str) -> dict[str, list[Period]]:
    """Of each close of a provenance the parts of its period in which it is the one that counts, in their order."""
    counted: dict[str, list[Period]] = {}
    taken: list[Period] = []
    for close_id, (first, *_) in reversed(list(posted.items())):
        if first.provenance == provenance:
            counted[close_id] = first.period.without(taken)
            taken.append(first.period)
    return dict(reversed(list(counted.items())))


def refuse_closed(posted: Postings, period: Period, provenance: str) -> None:
    """Raises PricingError for a period that lies in a closed one."""
    for close_id, (first, *_) in posted.items():
        if first.provenance == provenance and not period.without([first.period]):
            raise PricingError(
                f"the period {period.label} lies in {close_id}, which is closed for {provenance} from "
                f"{utc(first.from_ns)} to {utc(first.to_ns)}; `rose books restate {close_id}` corrects a closed period"
            )


def refuse_superseded(posted: Postings, close_id: str) -> None:
    """Raises PricingError for a close whose every hour was closed again."""
    first = posted[close_id][0]
    if counting(posted, first.provenance)[close_id]:
        return
    later = list(posted)[list(posted).index(close_id) + 1 :]
    others = [other for other in later if posted[other][0].provenance == first.provenance]
    over = [other for other in others if posted[other][0].period.overlaps(first.period)]
    raise PricingError(
        f"every hour of {close_id} was closed again in {', '.join(over)}, which counts since; correct that one: "
        f"`rose books restate {over[-1]}`"
    )


def covered(root: Path, posted: Postings, period: Period, provenance: str, frame: pl.DataFrame) -> Iterator[Covered]:
    """What a new close with the charges of `frame` takes over, part by part; it counts from then on."""
    for close_id, parts in counting(posted, provenance).items():
        for part in parts:
            if not part.overlaps(period):
                continue
            shared = part.within(period)
            yield Covered(
                close_id=close_id,
                correction=posted[close_id][-1].number,
                from_ns=shared.from_ns,
                to_ns=shared.to_ns,
                before_nano=_total(store.read(root, close_id).frame, shared),
                cost_nano=_total(frame, shared),
            )


def faults(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """Where what a close says of the closes that it covers is not what their frozen files add up to."""
    for posting in posted:
        for part in posting.covers:
            shared = Period(part.from_ns, part.to_ns)
            now = store.read(root, posting.close_id, posting.posted_ns).charges.frame
            before = store.read(root, part.close_id, posting.posted_ns).frame
            sums = {"before_nano": _total(before, shared), "cost_nano": _total(now, shared)}
            for name, nano in sums.items():
                if getattr(part, name) != nano:
                    yield (
                        f"{posting.name} says that {name} of {part.close_id} from {utc(part.from_ns)} to "
                        f"{utc(part.to_ns)} is {getattr(part, name)}, and the frozen files add up to {nano}"
                    )


def within(frame: pl.DataFrame, period: Period) -> pl.DataFrame:
    """The charges of a period's hours."""
    return frame.filter(pl.col("hour").is_between(naive(period.from_ns), naive(period.to_ns), closed="left"))


def _total(frame: pl.DataFrame, period: Period) -> int:
    return charge_algebra.total(within(frame, period))
