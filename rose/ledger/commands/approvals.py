"""`rose ledger rules | proposals | approve | reject | hold`: what needs two hands, and what nobody deletes."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import utc_us
from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    days,
    ledger_root,
    print_json,
    print_table,
)
from rose.ledger.commands.jobs import time_text
from rose.ledger.commands.maintain import utc_us_of
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.approvals.state import Hold, Proposal, Signed, State

hold_app = typer.Typer(help="Events that nobody deletes until the hold is released.", no_args_is_help=True)

#: What a line has no room for; --json has it.
_LONG = ("rules_before", "text", "sha256", "price_book_sha256", "rows_sha256")
_DAY = ["%Y-%m-%d"]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, in words; it stays in the ledger.")]
ProposalArgument = Annotated[str, typer.Argument(help="Its id, or how it begins.", metavar="ID")]


def rules(
    ledger: LedgerOption = None,
    *,
    log_access: Annotated[
        str | None, typer.Option(help="What is recorded of readers: none, exports (and verifications), or queries.")
    ] = None,
    retention_min: Annotated[
        str | None, typer.Option(help="Younger events are never deleted: an age such as 400d, or 0.")
    ] = None,
    approve: Annotated[
        str | None,
        typer.Option(help="Acts that another identity has to approve: retain,close,prices,restate,rules, or none."),
    ] = None,
    approver: Annotated[
        list[str] | None,
        typer.Option(help="Public key of one who may approve; may be repeated. `any`: whoever did not propose it."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rules of a ledger and who set them, or set those that are given; exit code 3 if that needs approval."""
    with clear_errors():
        from rose.ledger.approvals import proposals
        from rose.ledger.approvals.values import Rules
        from rose.ledger.rules import set_rules

        root = ledger_root(ledger)
        given = {
            "log_access": log_access,
            "retention_min_days": None
            if retention_min is None
            else 0.0
            if retention_min == "0"
            else days(retention_min),
            "approve": None if approve is None else [] if approve == "none" else approve.split(","),
            "approvers": None if approver is None else [] if approver == ["any"] else approver,
        }
        stands = proposals.load(root)
        if any(value is not None for value in given.values()):
            chosen = {name: value for name, value in given.items() if value is not None}
            set_rules(root, Rules.from_json({**stands.rules.to_json(), **chosen}))
            stands = proposals.load(root)
    plain, set_by = stands.rules.to_json(), stands.rules_set
    if as_json:
        print_json({**plain, "set": _signed_json(set_by), "faults": stands.faults})
    else:
        shown = {**plain, "approvers": plain["approvers"] or "any key but the proposer's"}
        print_table(["rule", "value"], [(name, _text(value)) for name, value in shown.items()])
        echo("Never set: these are the defaults." if set_by is None else f"Set {_who(set_by)}.")
    _say_faults(stands, as_json)


def proposals(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Acts that were proposed, newest first, with who proposed and who approved them; exit code 1 if one is forged."""
    with clear_errors():
        from rose.ledger.approvals import proposals as waiting

        stands = waiting.load(ledger_root(ledger))
    newest_first = list(stands.proposals.values())[::-1]
    if as_json:
        print_json({"proposals": [proposal_json(one) for one in newest_first], "faults": stands.faults})
    else:
        print_table(
            ["id", "act", "what", "status", "proposed", "approved or rejected", "carried out"],
            [
                (
                    one.short_id,
                    one.act,
                    summary(one),
                    one.status(utc_us()),
                    _who(one.proposed),
                    _verdict(one),
                    one.carried_out and _who(one.carried_out),
                )
                for one in newest_first
            ],
        )
    _say_faults(stands, as_json)


def approve(id: ProposalArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Approve a proposal of another identity; the command that proposed it then carries it out."""
    with clear_errors():
        from rose.ledger.approvals import proposals as waiting

        done = waiting.approve(ledger_root(ledger), id)
    if as_json:
        print_json(proposal_json(done))
    else:
        echo(f"Approved: {done.act} {summary(done)}. The command that proposed it carries it out.")


def reject(
    id: ProposalArgument, reason: ReasonOption, ledger: LedgerOption = None, as_json: JsonOption = False
) -> None:
    """Reject a proposal, or take back an approval or a proposal of one's own that was not begun."""
    with clear_errors():
        from rose.ledger.approvals import proposals as waiting

        done = waiting.reject(ledger_root(ledger), id, reason)
    if as_json:
        print_json(proposal_json(done))
    else:
        echo(f"Rejected: {done.act} {summary(done)}.")


@hold_app.command("add")
def add_hold(
    reason: ReasonOption,
    ledger: LedgerOption = None,
    *,
    run: Annotated[str | None, typer.Option(help="Hold the events of this run.")] = None,
    since: Annotated[datetime | None, typer.Option(formats=_DAY, help="Hold from this UTC day on.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=_DAY, help="Hold before this UTC day.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Hold events: no retention and no archiving deletes them until the hold is released."""
    with clear_errors():
        from rose.ledger.approvals import holds

        made = holds.add(ledger_root(ledger), reason, run_id=run, since_us=utc_us_of(since), until_us=utc_us_of(until))
    if as_json:
        print_json(hold_json(made))
    else:
        echo(f"Hold {made.short_id} on {made.what}.")


@hold_app.command("list")
def list_holds(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Every hold, those that were released too."""
    with clear_errors():
        from rose.ledger.approvals import proposals as waiting

        held = list(waiting.load(ledger_root(ledger)).holds.values())
    if as_json:
        print_json([hold_json(one) for one in held])
        return
    rows = [(one.short_id, one.what, _who(one.added), one.released and _who(one.released)) for one in held]
    print_table(["id", "holds", "added", "released"], rows)


@hold_app.command("release")
def release_hold(
    id: Annotated[str, typer.Argument(help="Its id, or how it begins.", metavar="ID")],
    reason: ReasonOption,
    ledger: LedgerOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Release a hold; exit code 3 if that needs an approval."""
    with clear_errors():
        from rose.ledger.approvals import holds

        done = holds.release(ledger_root(ledger), id, reason)
    if as_json:
        print_json(hold_json(done))
    else:
        echo(f"Hold {done.short_id} on {done.what} is released.")


def summary(proposal: Proposal) -> str:
    """What a proposal is about, in a line."""
    # The request is what is carried out: nothing may stand in its place.
    parts = {**proposal.content, **proposal.request}
    shown = {name: len(value) if name == "parts" else value for name, value in parts.items() if name not in _LONG}
    return ", ".join(f"{name} {_text(value)}" for name, value in shown.items() if value is not None)


def proposal_json(proposal: Proposal) -> dict[str, Any]:
    """Plain values; times are UTC microseconds."""
    signed = ("proposed", "approved", "rejected", "begun", "carried_out")
    return {
        "id": proposal.id,
        "act": proposal.act,
        "status": proposal.status(utc_us()),
        "request": proposal.request,
        "content": proposal.content,
        "expires_us": proposal.expires_us,
        **{name: _signed_json(getattr(proposal, name)) for name in signed},
        "result": proposal.result,
    }


def hold_json(hold: Hold) -> dict[str, Any]:
    """Plain values; times are UTC microseconds."""
    return dataclasses.asdict(hold)


def _signed_json(signed: Signed | None) -> dict[str, Any] | None:
    return None if signed is None else dataclasses.asdict(signed)


def _who(signed: Signed) -> str:
    why = "" if signed.reason is None else f": {signed.reason}"
    return f"{time_text(signed.at_us)} by {signed.text}{why}"


def _verdict(proposal: Proposal) -> str | None:
    if proposal.rejected is not None:
        return f"rejected {_who(proposal.rejected)}"
    return None if proposal.approved is None else f"approved {_who(proposal.approved)}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(one)}" for name, one in value.items())
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _say_faults(stands: State, as_json: bool) -> None:
    if stands.faults:
        if not as_json:
            echo(*stands.faults)
        raise typer.Exit(1)
