"""The commands `rose books` and `rose explain`."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger
from rose.pricing import period as periods
from rose.pricing.commands import common
from rose.pricing.money import USD, PricingError, format_usd
from rose.terminal import echo, echo_error, visible

if TYPE_CHECKING:
    from rose.ledger.ledger import Ledger
    from rose.pricing.closing.store import Posting
    from rose.pricing.period import Period

books_app = typer.Typer(no_args_is_help=True, help="Close periods, correct them, and watch what is spent.")

CloseArgument = Annotated[str, typer.Argument(help="Name of a close; `rose books show` lists all.", metavar="CLOSE")]
ReceiptOption = Annotated[
    Path | None,
    typer.Option("--receipt", help="Write a signed receipt to this file, where the ledger's owner cannot change it."),
]


@books_app.command("close")
def close(
    period: Annotated[
        str, typer.Option("--period", "-p", help="UTC: 2026-10, last-month, 2026-10-03, 2026-10-03T05, FROM..TO.")
    ],
    ledger: LedgerOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    who: common.WhoOption = None,
    receipt: ReceiptOption = None,
    *,
    with_open_runs: Annotated[
        bool, typer.Option("--with-open-runs", help="Close even if a run of the period has not ended.")
    ] = False,
    allow_unverified: common.UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Price a period, then freeze its charges, its price book, and the state of the ledger."""
    with common.clear_errors():
        from rose.ledger.evidence.receipt import check_place
        from rose.pricing.closing import close as closing
        from rose.pricing.price_books import pricebook

        opened, whole = open_ledger(ledger, allow_unverified=allow_unverified), common.period_of(period)
        if receipt is not None:
            check_place(receipt)
        book = pricebook.choose(opened, price_book, period=whole, provenance=provenance)
        posting = closing.close(opened, whole, book, provenance=provenance, by=who, with_open_runs=with_open_runs)
        _say(opened, [posting], receipt, as_json)
        if price_book is not None and pricebook.adopted(opened) is None:
            echo(
                "Only this close uses the prices of that book. To use them for all open hours too, run "
                "`rose price FILE --adopt`",
                err=True,
            )


@books_app.command("restate")
def restate(
    close_id: CloseArgument,
    reason: Annotated[str, typer.Option("--reason", help="Reason for the correction; it stays in the books.")],
    ledger: LedgerOption = None,
    price_book: Annotated[
        str | None, typer.Option("--price-book", "-b", help="A TOML price book; by default that of the last posting.")
    ] = None,
    who: common.WhoOption = None,
    receipt: ReceiptOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Price a closed period again and post the difference as a correction. The close itself never changes."""
    with common.clear_errors():
        from rose.ledger.evidence.receipt import check_place
        from rose.pricing.closing import close as closing
        from rose.pricing.closing import store
        from rose.pricing.price_books import pricebook

        opened = open_ledger(ledger)
        if receipt is not None:
            check_place(receipt)
        book = None if price_book is None else pricebook.choose(opened, price_book)
        if closing.restate(opened, close_id, reason, book, by=who) is None:
            nothing = {"close_id": close_id, "correction": None, "why": "no charge differs; nothing was posted"}
            common.print_answer(as_json, lambda: nothing, lambda: [f"{close_id}: {nothing['why']}"])
            return
        _say(opened, store.of_close(opened, close_id), receipt, as_json)


@books_app.command("show")
def show(
    close_id: Annotated[
        str | None, typer.Argument(help="Name of a close; by default all are listed.", metavar="CLOSE")
    ] = None,
    ledger: LedgerOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List closed periods, or show one close with its corrections. `rose cost --close` splits its cost by team."""
    with common.clear_errors():
        from rose.pricing.closing import store

        opened = open_ledger(ledger)
        if close_id is not None:
            posted = store.of_close(opened, close_id)
            common.print_answer(as_json, lambda: _facts(posted), lambda: store.posting_elements(posted))
            return
        closes = store.postings(opened)
        nothing = ["no period is closed yet; `rose books close` closes one"]
        common.print_answer(
            as_json,
            lambda: [_facts(posted) for posted in closes.values()],
            lambda: store.closes_table(closes) if closes else nothing,
        )


@books_app.command("verify")
def verify(
    ledger: LedgerOption = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="A receipt kept elsewhere, or a folder of receipts; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Public key that must have signed the receipts.")] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check the books against the ledger, and the ledger against its hash chain. The exit code is 1 for any problem."""
    with common.clear_errors():
        from rose.ledger.evidence import continuation
        from rose.pricing.audit.check import check

        receipts = continuation.read(against, key=key) if against else {}
        checked = check(open_ledger(ledger), receipts)
        sound = (
            f"{checked.closes} closes, {checked.corrections} corrections, {checked.files} files: the books are sound"
        )
        common.print_answer(
            as_json,
            lambda: {"ok": not checked.problems, **dataclasses.asdict(checked), "against": list(receipts)},
            lambda: list(checked.problems) or [sound],
        )
        if checked.problems:
            raise typer.Exit(1)


@books_app.command("budget")
def budget(
    team: Annotated[str | None, typer.Argument(help="Team to set a budget for; by default, show budgets.")] = None,
    usd: Annotated[str | None, typer.Argument(help="Dollars of amortized cost, such as 12000 or 12000.50.")] = None,
    month: common.MonthOption = None,
    ledger: LedgerOption = None,
    who: common.WhoOption = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Set the budget of a team for a month, or show all budgets with what was spent and the forecast."""
    with common.clear_errors():
        from rose.pricing.watch import budget

        opened, whole = open_ledger(ledger), common.month_of(month)
        if team is not None:
            _set_budget(opened, team, usd, whole, who, as_json)
            return
        rows = budget.show(opened, whole, price_book, provenance=provenance)
        common.print_answer(as_json, lambda: [row.to_json() for row in rows], lambda: budget.budget_tables(rows))


def _set_budget(ledger: Ledger, team: str, usd: str | None, month: Period, who: str | None, as_json: bool) -> None:
    from rose.pricing.spend import cost
    from rose.pricing.watch import budget

    if usd is None:
        raise PricingError(f"give the dollars too: `rose books budget {team} USD`")
    before = budget.budgets(ledger, month).get(team)
    nano = budget.set_budget(ledger, team, usd, month, by=who)
    data = {"team": team, "month": month.label, "budget_nano": nano, "replaced_nano": before, "currency": USD}
    replaced = "" if before is None else f", in place of {format_usd(before)}"
    common.print_answer(
        as_json, lambda: data, lambda: [f"budget of {team} for {month.label}: {format_usd(nano)}{replaced}"]
    )
    if (unknown := cost.unknown_team(ledger, team)) is not None:
        echo(f"warning: {unknown}", err=True, colour=typer.colors.YELLOW)


def explain_command(
    ledger: LedgerOption = None,
    run: Annotated[str | None, typer.Option("--run", help="Run that is charged.")] = None,
    hour: Annotated[str | None, typer.Option("--hour", help="UTC hour such as 2026-11-21T13.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device that is charged.")] = None,
    bucket: Annotated[str | None, typer.Option("--bucket", help="serving, rollout, ..., transfer or energy.")] = None,
    lease: Annotated[str | None, typer.Option("--lease", help="Lease that was in force.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Team that pays.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task that the rollouts worked on.")] = None,
    fate: Annotated[str | None, typer.Option("--fate", help="Fate of rollout tokens.")] = None,
    policy_version: Annotated[int | None, typer.Option("--policy-version", help="Policy version of tokens.")] = None,
    close_id: Annotated[str | None, typer.Option("--close", help="Explain the booked figure of this close.")] = None,
    price_book: common.BookOption = None,
    provenance: common.ProvenanceOption = None,
    *,
    events: Annotated[bool, typer.Option("--events", help="List every single event.")] = False,
    allow_unverified: common.UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute the charge of a device-hour from its events. The exit code is 1 if the result differs."""
    with common.clear_errors():
        from rose.pricing.audit import explain
        from rose.pricing.price_books import pricebook

        hour_ns = None if hour is None else periods.hour(hour, "--hour")
        question = explain.ChargeQuestion(
            hour_ns=hour_ns,
            run_id=run,
            device_id=device,
            bucket=bucket,
            lease_id=lease,
            team=team,
            task=task,
            fate=fate,
            policy_version=policy_version,
        )
        opened = open_ledger(ledger, allow_unverified=allow_unverified)
        if close_id is None:
            whole = None if hour_ns is None else periods.of_hours(hour_ns, hour_ns)
            book = pricebook.choose(opened, price_book, run_id=run, period=whole, provenance=provenance)
            answers = [explain.explain(opened, question, book, provenance=provenance)]
        else:
            answers = explain.explain_closed(opened, question, close_id)
        common.print_answer(
            as_json,
            lambda: [answer.to_json(events) for answer in answers],
            lambda: (line for answer in answers for line in explain.elements(answer, with_events=events)),
        )
        faults = [fault for answer in answers for fault in answer.faults]
        if faults:
            echo_error("\n  ".join(["the charge DOES NOT RE-ADD:", *map(visible, faults)]))
            raise typer.Exit(1)


def _facts(posted: list[Posting]) -> dict[str, Any]:
    return {
        "close_id": posted[0].close_id,
        "total_nano": sum(posting.cost_nano for posting in posted),
        "currency": posted[0].book.currency,
        "verified": all(posting.verified for posting in posted),
        "postings": [posting.facts for posting in posted],
    }


def _say(ledger: Ledger, posted: list[Posting], file: Path | None, as_json: bool) -> None:
    from rose.ledger.evidence import receipt
    from rose.pricing.closing import store

    data = _facts(posted)
    advice = "Keep the hash elsewhere; `--receipt FILE` writes a receipt that `rose books verify --against` takes."
    if file is not None:
        content = receipt.take(ledger).content()
        receipt.keep(file, content)
        sha256 = hashlib.sha256(content).hexdigest()
        data["receipt"] = {"file": str(file), "sha256": sha256}
        advice = (
            f"receipt {file}, SHA-256 {sha256}: keep it where nobody who can write to the ledger can change it; "
            "`rose books verify --against` takes it"
        )
    common.print_answer(as_json, lambda: data, lambda: (*store.posting_elements(posted), advice))
