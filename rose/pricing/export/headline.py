"""What a report opens with: in plain words what it cost, beside what came before, what borrowing did, and budgets."""

from __future__ import annotations

import polars as pl

from rose.pricing.document import Report
from rose.pricing.export.bill import Bill
from rose.pricing.export.context import Before, Context
from rose.pricing.figures import MARGINAL
from rose.pricing.money import format_ns, format_usd


def of_bill(bill: Bill, context: Context) -> list[str]:
    """Sentences on a period or a close."""
    frame = bill.charges.frame
    # By hardware: runs that share a device, or call it by other names, have one; transfers have none.
    devices, runs = frame["hardware_id"].drop_nulls().n_unique(), frame["run_id"].n_unique()
    corrected = ", corrections included" if bill.corrections else ""
    time = format_ns(int(frame["ns"].sum()))
    return [
        f"This period cost {format_usd(bill.total_nano)}{corrected}: {time} of device time, on "
        f"{_many(devices, 'device')} in {_many(runs, 'run')}. {_compared(bill.total_nano, context.before)}",
        _borrowed(bill),
        _budgets(context),
    ]


def of_run(report: Report, context: Context) -> list[str]:
    """Sentences on one run."""
    total = int(report.amortized["total"].value or 0)
    useful = report.tokens["borrowed"]["useful"]
    borrowed = "No rollout ran on borrowed time."
    if report.borrow.borrowed.value:
        borrowed = (
            f"Borrowing put {report.borrow.borrowed.text} of serving devices to rollouts, which made {useful.text} "
            f"useful tokens. What that added to the bill: {report.marginal['total'].text}. Cash saved: "
            f"{report.savings.cash_saved.text}. Capacity avoided (hypothetical, on no bill): "
            f"{report.savings.capacity_avoided.text}."
        )
    return [
        f"This run cost {format_usd(total)}: {report.provisioned.text} of device time, on "
        f"{_many(len(report.devices), 'device')}. {_compared(total, context.before)}",
        borrowed,
    ]


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _compared(total_nano: int, before: Before) -> str:
    if before.total_nano is None:
        return f"It cannot be compared with {before.name}: {before.why}."
    change = total_nano - before.total_nano
    if change == 0:
        return f"That is what {before.name}, cost too."
    share = f" ({abs(change) / before.total_nano:.1%})" if before.total_nano else ""
    more = "more" if change > 0 else "less"
    size, earlier = format_usd(abs(change)), format_usd(before.total_nano)
    return f"That is {size}{share} {more} than {before.name}, which cost {earlier}."


def _borrowed(bill: Bill) -> str:
    rollout = bill.charges.frame.filter(pl.col("bucket") == "rollout")
    lent = rollout.filter((pl.col("pool") == "serving") & pl.col("lease_id").is_not_null())
    lent_ns, all_ns = int(lent["ns"].sum()), int(rollout["ns"].sum())
    if not lent_ns:
        return "No rollout ran on borrowed time."
    added = (
        f"it added {format_usd(bill.marginal_nano)} to the bill ({MARGINAL})"
        if bill.marginal_nano is not None
        else "what it added to the bill is a figure of one whole run, and is in the report of each"
    )
    return (
        f"Borrowing put {format_ns(lent_ns)} of serving devices to rollouts, {lent_ns / all_ns:.0%} of all rollout "
        f"time; {added}."
    )


def _budgets(context: Context) -> str:
    if not context.budgets:
        return f"No team has a budget for {' or '.join(context.months)}."
    over = [
        f"{budget.team} is {format_usd(budget.spent_nano - budget.budget_nano)} over its budget of {budget.month}"
        for budget in context.budgets
        if budget.spent_nano is not None and budget.spent_nano > budget.budget_nano
    ]
    if over:
        return f"{'; '.join(over)}."
    if any(budget.spent_nano is None for budget in context.budgets):
        return "What the budgets' months have cost so far cannot be priced."
    return f"No budget is overspent ({_many(len(context.budgets), 'budget')})."
