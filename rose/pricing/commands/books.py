"""`rose books` and `rose explain`: closing periods, correcting them, budgets, the audit trail."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import (
    BookOption,
    FromOption,
    MonthOption,
    ProvenanceOption,
    ToOption,
    UnverifiedOption,
    WhoOption,
    clear_errors,
    print_answer,
)
from rose.terminal import echo, echo_error, visible

if TYPE_CHECKING:
    from rose.pricing.closing.period import Period
    from rose.pricing.price_books.pricebook import PriceBook

books_app = typer.Typer(no_args_is_help=True, help="Close periods, correct them, and watch what is spent.")

CloseArgument = Annotated[str, typer.Argument(help="Name of a close; `rose books show` has them.", metavar="CLOSE")]
AsOfOption = Annotated[
    str | None, typer.Option("--as-of", help="As it was known at this UTC time, such as 2026-12-05T10:00Z.")
]
ReceiptOption = Annotated[
    Path | None,
    typer.Option("--receipt", help="Write a signed receipt there, to be kept out of reach of the ledger's owner."),
]
OptionalBook = Annotated[
    str | None, typer.Option("--price-book", "-b", help="A price book TOML file; else the one of the last posting.")
]


@books_app.command("close")
def close(
    ledger: LedgerOption = None,
    from_text: FromOption = None,
    to_text: ToOption = None,
    month: MonthOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    who: WhoOption = None,
    receipt: ReceiptOption = None,
    *,
    with_open_runs: Annotated[
        bool, typer.Option("--with-open-runs", help="Close although a run of the period has not ended.")
    ] = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Price a period once more and freeze it: charges, price book, and how far the ledger was."""
    with clear_errors():
        from rose.ledger.evidence import receipt as receipts
        from rose.pricing.closing import close as closing
        from rose.pricing.closing import statement, tables
        from rose.pricing.closing.records import adopted

        root, period = ledger_root(ledger), _period(from_text, to_text, month)
        if receipt is not None:
            # Before anything is posted.
            receipts.check_place(receipt)
        made = closing.close(
            root,
            period,
            _book(root, price_book, period, provenance=provenance),
            provenance=provenance,
            by=who,
            with_open_runs=with_open_runs,
            allow_unverified=allow_unverified,
        )
        stated, kept = statement.state(made), _receipt(root, receipt)
        print_answer(as_json, stated.to_json() | kept, lambda: (*tables.statement(stated), *_kept(kept)))
        if price_book is not None and adopted(root) is None:
            echo(
                "Only this close takes its prices from that book: `rose price adopt FILE` has every command price the "
                "hours that are not closed by it too",
                err=True,
            )


@books_app.command("restate")
def restate(
    close_id: CloseArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, in words; it stays in the books.")],
    ledger: LedgerOption = None,
    price_book: OptionalBook = None,
    who: WhoOption = None,
    receipt: ReceiptOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Price a closed period again and post the difference as a correction; the close itself never changes."""
    with clear_errors():
        from rose.ledger.evidence import receipt as receipts
        from rose.pricing.closing import restate as restating
        from rose.pricing.closing import statement, store, tables

        root = ledger_root(ledger)
        if receipt is not None:
            receipts.check_place(receipt)
        book = None if price_book is None else _book(root, price_book)
        made = restating.restate(root, close_id, reason, book, by=who, allow_unverified=allow_unverified)
        if made is None:
            nothing = {"close_id": close_id, "correction": None, "why": "nothing differs, so nothing was posted"}
            print_answer(as_json, nothing, lambda: [f"{close_id}: {nothing['why']}"])
            return
        stated, kept = statement.state(store.read(root, close_id)), _receipt(root, receipt)
        print_answer(as_json, stated.to_json() | kept, lambda: (*tables.statement(stated), *_kept(kept)))


@books_app.command("show")
def show(
    close_id: Annotated[
        str | None, typer.Argument(help="Name of a close; all of them are listed without.", metavar="CLOSE")
    ] = None,
    ledger: LedgerOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="Drill down by team, run, device-class, ...; give it again for more."),
    ] = None,
    view: Annotated[str, typer.Option("--view", help="amortized or fully-loaded.")] = "amortized",
    as_of: AsOfOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Every closed period, or one as it is known now, or was at a time; its rows sum to its total exactly."""
    with clear_errors():
        from rose.pricing.closing import period, statement, store, tables
        from rose.pricing.closing.records import postings

        if close_id is None:
            closes = postings(ledger_root(ledger))
            data = [
                {"close_id": name, "postings": [statement.posting_json(posting) for posting in posted]}
                for name, posted in closes.items()
            ]
            nothing = ["no period is closed yet; `rose books close` closes one"]
            print_answer(as_json, data, lambda: tables.closes(closes) if closes else nothing)
            return
        as_of_ns = None if as_of is None else period.instant(as_of, "--as-of")
        closed = store.read(ledger_root(ledger), close_id, as_of_ns)
        stated = statement.state(closed, by or ["bucket" if view == "amortized" else "work"], view)
        print_answer(as_json, stated.to_json(), lambda: tables.statement(stated))


@books_app.command("verify")
def verify(
    ledger: LedgerOption = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="A receipt that was kept elsewhere, or a folder of such; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Public key that must have signed the receipts.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the books against the ledger, and the ledger against its chain; exit code 1 if anything is wrong."""
    with clear_errors():
        from rose.ledger.evidence import continuation
        from rose.pricing.audit.check import check

        receipts = continuation.read(against, key=key) if against else {}
        checked = check(ledger_root(ledger), receipts)
        data = {
            "ok": not checked.problems,
            "closes": checked.closes,
            "corrections": checked.corrections,
            "files": checked.files,
            "against": list(receipts),
            "problems": list(checked.problems),
        }
        sound = (
            f"{checked.closes} closes, {checked.corrections} corrections, {checked.files} files: the books are sound"
        )
        print_answer(as_json, data, lambda: list(checked.problems) or [sound])
        if checked.problems:
            raise typer.Exit(1)


@books_app.command("budget")
def budget(
    team: Annotated[
        str | None, typer.Argument(help="The tag `team` of the runs to set a budget for; without, budgets are shown.")
    ] = None,
    usd: Annotated[str | None, typer.Argument(help="Dollars of amortized cost, such as 12000 or 12000.50.")] = None,
    month: MonthOption = None,
    ledger: LedgerOption = None,
    who: WhoOption = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set a team's budget for a month; or show budgets, what is spent, the forecast and the chance of going over."""
    with clear_errors():
        from rose.pricing.closing import period
        from rose.pricing.watch import budget, tables

        asked = budget.current_month() if month is None else period.of_month(month)
        root = ledger_root(ledger)
        if team is not None:
            _set_budget(root, team, usd, asked, who, as_json)
            return
        rows = budget.show(root, asked, price_book, provenance=provenance, allow_unverified=allow_unverified)
        print_answer(as_json, [row.to_json() for row in rows], lambda: tables.budgets(rows))


def _set_budget(root: Path, team: str, usd: str | None, month: Period, who: str | None, as_json: bool) -> None:
    from rose.pricing.money import USD, PricingError, format_usd
    from rose.pricing.spend import cost
    from rose.pricing.watch import budget

    if usd is None:
        raise PricingError(f"give the dollars too: `rose books budget {team} USD`")
    before = budget.budgets(root, month).get(team)
    nano = budget.set_budget(root, team, usd, month, by=who)
    data = {"team": team, "month": month.label, "budget_nano": nano, "replaced_nano": before, "currency": USD}
    replaced = "" if before is None else f", in place of {format_usd(before)}"
    print_answer(as_json, data, lambda: [f"budget of {team} for {month.label}: {format_usd(nano)}{replaced}"])
    if (unknown := cost.unknown_team(root, team)) is not None:
        echo(f"warning: {unknown}", err=True, colour=typer.colors.YELLOW)


def explain_command(
    ledger: LedgerOption = None,
    run: Annotated[str | None, typer.Option("--run", help="Run that is charged.")] = None,
    hour: Annotated[str | None, typer.Option("--hour", help="UTC hour such as 2026-11-21T13.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device that is charged.")] = None,
    bucket: Annotated[str | None, typer.Option("--bucket", help="serving, rollout, ..., transfer or energy.")] = None,
    lease: Annotated[str | None, typer.Option("--lease", help="Lease that was in force.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Team that pays.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task of rollout time.")] = None,
    fate: Annotated[str | None, typer.Option("--fate", help="What became of its tokens.")] = None,
    policy_version: Annotated[int | None, typer.Option("--policy-version", help="Version that made them.")] = None,
    close_id: Annotated[str | None, typer.Option("--close", help="Explain the booked figure of this close.")] = None,
    price_book: BookOption = None,
    provenance: ProvenanceOption = None,
    *,
    events: Annotated[bool, typer.Option("--events", help="List every single event.")] = False,
    allow_unverified: UnverifiedOption = False,
    as_json: JsonOption = False,
) -> None:
    """From a dollar to its events: the charge of a device-hour added up again; exit code 1 if it does not re-add."""
    with clear_errors():
        from rose.pricing.audit import explain, tables
        from rose.pricing.closing import period

        asked = explain.Question(
            hour_ns=None if hour is None else period.hour(hour, "--hour"),
            run_id=run,
            device_id=device,
            bucket=bucket,
            lease_id=lease,
            team=team,
            task=task,
            fate=fate,
            policy_version=policy_version,
        )
        root = ledger_root(ledger)
        if close_id is None:
            within = None if asked.hour_ns is None else period.of_hour(asked.hour_ns)
            book = _book(root, price_book, within, run, provenance)
            answers = [explain.explain(root, asked, book, provenance=provenance, allow_unverified=allow_unverified)]
        else:
            answers = explain.explain_closed(root, asked, close_id)
        data = [answer.to_json(events) for answer in answers]
        print_answer(
            as_json,
            data,
            lambda: (line for answer in answers for line in tables.explanation(answer, with_events=events)),
        )
        faults = [fault for answer in answers for fault in answer.faults]
        if faults:
            echo_error("\n  ".join(["the charge DOES NOT RE-ADD:", *map(visible, faults)]))
            raise typer.Exit(1)


def _receipt(root: Path, file: Path | None) -> dict[str, Any]:
    """Write a receipt of the ledger, whose newest posting it fixes with all before; says where, and its SHA-256."""
    from rose.ledger.evidence import receipt

    if file is None:
        return {}
    content = receipt.take(root).content()
    receipt.keep(file, content)
    return {"receipt": {"file": str(file), "sha256": hashlib.sha256(content).hexdigest()}}


def _kept(kept: dict[str, Any]) -> list[str]:
    if not kept:
        return ["Keep the hash elsewhere; `--receipt FILE` writes a receipt that `rose books verify --against` takes."]
    where = kept["receipt"]
    return [
        f"receipt {where['file']}, SHA-256 {where['sha256']}: keep it where nobody who can write to the ledger can "
        "change it; `rose books verify --against` takes it"
    ]


def _period(from_text: str | None, to_text: str | None, month: str | None) -> Period:
    from rose.pricing.closing import period

    return period.parse(from_text, to_text, month)


def _book(
    root: Path,
    price_book: str | None,
    period: Period | None = None,
    run_id: str | None = None,
    provenance: str | None = None,
) -> PriceBook:
    from rose.pricing.price_books import choice

    from_ns, to_ns = (None, None) if period is None else (period.from_ns, period.to_ns)
    return choice.choose(root, price_book, run_id=run_id, from_ns=from_ns, to_ns=to_ns, provenance=provenance)
