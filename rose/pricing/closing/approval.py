"""Closes, corrections and price books of two hands, where the rules of the ledger ask for that."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rose.clock import utc
from rose.ledger import layout
from rose.ledger.approvals import proposals, state
from rose.pricing.closing import store
from rose.pricing.closing.records import Posting, postings
from rose.pricing.money import PricingError
from rose.pricing.price_books import choice
from rose.pricing.price_books.pricebook import PriceBook


def post(root: Path, posting: Posting, contents: Mapping[str, bytes], rows: bytes) -> Posting:
    """Freeze a posting, under the approval of exactly its figures where the rules ask for one; returns what was posted.

    `rows` are a file of its rows without the time of posting. The caller holds the lock of the books. Raises
    ApprovalNeededError, after it was proposed, and LedgerError.
    """
    act = "restate" if posting.number else "close"
    request = {
        "close": posting.close_id,
        "correction": posting.number,
        "provenance": posting.provenance,
        "from": utc(posting.from_ns),
        "to": utc(posting.to_ns),
        "reason": posting.reason,
        "price_book": f"{posting.book.name} {posting.book.version}",
        "price_book_sha256": posting.book.sha256,
        "cost_nano": posting.cost_nano,
        "currency": posting.book.currency,
        "rows": posting.rows,
        "rows_sha256": hashlib.sha256(rows).hexdigest(),
        "verified": posting.verified,
        "open_runs": list(posting.open_runs),
    }
    with proposals.permitted(root, act, request, dict) as grant:
        if grant is not None:
            posting = dataclasses.replace(posting, approval=grant.to_json())
            grant.result["posting"] = posting.name
        store.post(root, posting, contents)
    return posting


def settle(root: Path) -> None:
    """Note of what was posted that it was carried out, where a killed process did not. Raises LedgerError."""
    granted = {approval["proposal"]: posting for posting in _all(root) if (approval := posting.approval) is not None}
    if not granted:
        return
    for name, proposal in proposals.load(root).proposals.items():
        if name in granted and proposal.begun is not None and proposal.carried_out is None:
            proposals.finish(root, name, {"posting": granted[name].name})


def adopt(root: Path | str, book: PriceBook) -> state.Signed:
    """Have a ledger priced by a book from now on; returns who decided that, and when. Its text stays in the ledger.

    Raises PricingError for made-up prices, ApprovalNeededError where the rules ask for an approval of `prices`, and
    LedgerError.
    """
    root = layout.check(root)
    choice.refuse_example(book, "adoption")
    if (newest := proposals.load(root).adopted_book) is not None and newest[1] == book.text:
        return newest[0]
    request = {"sha256": book.sha256}
    about = {"name": book.name, "version": book.version, "currency": book.currency, "text": book.text}
    body = {**request, "name": book.name, "text": book.text}
    proposals.record(root, "prices", request, state.ADOPTED, body, about)
    newest = proposals.load(root).adopted_book
    assert newest is not None
    return newest[0]


def check_adopted(root: Path | str, book: PriceBook) -> None:
    """Raises PricingError where the rules want price books adopted and this one was not."""
    stands = proposals.load(root)
    if "prices" in stands.rules.approve and book.sha256 not in stands.adopted:
        raise PricingError(
            f"price book {book.name} {book.version} ({book.sha256[:12]}) was not adopted, and the rules of this ledger "
            f"want another identity to approve prices: run `rose price adopt {book.path}`"
        )


def faults(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """Postings whose approval is not what the ledger says, or that lack one which the rules ask for."""
    stands = proposals.load(root)
    for posting in posted:
        act = "restate" if posting.number else "close"
        approval, asked_us = posting.approval, stands.rules_set.at_us if stands.rules_set is not None else 0
        if approval is None:
            if act in stands.rules.approve and posting.posted_us > asked_us:
                yield f"{posting.name} has no approval, which the rules ask for since {utc(asked_us * 1000)[:19]}Z"
            continue
        proposal = stands.proposals.get(approval.get("proposal", ""))
        if proposal is None or proposal.approved is None or proposal.act != act:
            yield f"{posting.name} names proposal {approval.get('proposal', '')[:12]}, which nobody approved"
            continue
        own: dict[str, Any] = {"close": posting.close_id, "correction": posting.number, "cost_nano": posting.cost_nano}
        if {name: proposal.request.get(name) for name in own} != own:
            yield f"{posting.name} is not what was approved as proposal {proposal.short_id}"


def _all(root: Path) -> Iterator[Posting]:
    for posted in postings(root).values():
        yield from posted
