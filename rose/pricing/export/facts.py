"""What a workbook and an HTML report say at their top of the bill they show: what it is, and how far to trust it."""

from __future__ import annotations

from rose.clock import utc
from rose.pricing.export.bill import Bill
from rose.pricing.figures import AMORTIZED, EXAMPLE_PRICES, FULLY_LOADED, MARGINAL, Stamp

#: What each word of an export means, for readers who have nothing else of ROSE.
DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "bill",
        "What the fleet cost in the period: every device's provisioned time at the price book's price, weight "
        "transfers at the price of their route, and metered energy where no device's price holds it already.",
    ),
    (AMORTIZED, "The bill divided by what each nanosecond of each device was used for. Sums to the bill exactly."),
    (
        FULLY_LOADED,
        "The same bill charged to work only: what exists for rollouts (weight syncs, activations, "
        "transfers) to rollouts, headroom to serving, and each device's idle time and energy to what it did that day. "
        "Sums to the bill exactly.",
    ),
    (
        MARGINAL,
        "What borrowing added to the bill: extra energy, transfers, scheduling, recomputation, missed budgets "
        "(confounded unless leases were withheld at random). "
        "For deciding whether to borrow; it does not sum to anything, and is never added to the other two.",
    ),
    ("serving", "Time a device answered requests: of users, or of a trace that stands in for them."),
    ("rollout", "Time a device generated rollouts for reinforcement learning, borrowed or dedicated."),
    ("train", "Time a device updated the policy."),
    ("sync", "Time a device took in new weights."),
    ("activation", "Time in which an engine for rollouts started, or its memory came to a device or left it."),
    ("headroom", "Time that a rollout wanted, was held for serving's sake, and nobody worked in."),
    (
        "idle",
        "Time in which a device did nothing, and nobody was held. On a serving device without a lease it could "
        "have been lent; in a lease it is leased, not used.",
    ),
    ("unaccounted", "Provisioned time that no report of the device covers: it is paid for, and nobody knows for what."),
    ("transfer", "Bytes of weights sent over a route that costs money."),
    ("energy", "Metered electricity of a device whose price does not hold it: kWh times PUE times tariff."),
    ("unallocated", "The ledger does not say which team, policy version or task: shown, never spread."),
    (
        "wasted",
        "Rollout time whose tokens came to nothing: stale, lost (a failed attempt or a lost trajectory), or "
        "computed again after a preemption. A rejected answer is no waste: the trainer learns from it.",
    ),
    (
        "live, replay, simulated",
        "Where the figures come from. Live: engines that ran and served; where a trace is "
        "named, replayed traffic stood in for users. Replay: the real "
        "policies and recorded traffic against a fleet in virtual time. Simulated: made-up events. "
        "They are never mixed.",
    ),
    ("nano-dollar", "1e-9 dollars. All amounts are whole nano-dollars until they are shown."),
    ("correction", "A change to a closed period, posted later as a row of its own. A closed figure never changes."),
    ("verified", "The ledger's hash chain held when the figures were made: no event was changed or is missing."),
)

#: The symbols of the formulas.
SYMBOLS: tuple[tuple[str, str], ...] = (
    ("CPM", "List price of a million tokens that serving generates, dollars, from the price book."),
    ("R", "Tokens generated for each token of an answer, reasoning included; 1 or more."),
    (
        "rho",
        "Trajectories per judged group, less 1: what a group made beyond the one answer to keep.",
    ),
    ("pi", "Price of a rollout token over the price of a serving token."),
    ("alpha", "Share of judged groups in which the verifier accepted a trajectory."),
    ("phi", "Borrowed share of useful rollout tokens."),
    ("PPV", "Share of accepted trajectories that an audit found correct."),
    (
        "C3",
        "CPM * R * (1 + pi * rho) / alpha: dollars per million tokens of accepted answers, by formula. "
        "Hypothetical: CPM is a list price, on no bill.",
    ),
    ("m", "Marginal price of a borrowed device-hour."),
    ("TTFT", "Time to first token: from a request until its answer begins."),
    ("TPOT", "Time per output token after the first."),
    ("p50, p99", "Half, and 99 of 100, of the measured values lie at or below it."),
    ("95% interval", "Where the true value lies in 95 of 100 such estimates; the exact value of a bill needs none."),
)


def title(bill: Bill) -> str:
    """What is shown, in a line."""
    if bill.close_id is not None:
        return f"Closed period {bill.close_id}"
    runs = bill.charges.frame["run_id"].unique().sort().to_list()
    if len(runs) == 1:
        label = bill.runs.get(runs[0])
        return f"Run {label.name} ({runs[0]}), not closed" if label else f"Run {runs[0]}, not closed"
    return f"{len(runs)} runs, not closed"


def about(bill: Bill) -> list[tuple[str, str]]:
    """Name and value of everything that must be known to use the figures."""
    stamp, book = bill.stamp, bill.book
    frame = bill.charges.frame
    return [
        ("period", f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}"),
        ("currency", stamp.currency),
        ("provenance", stamp.provenance),
        ("ledger", ledger(stamp, bill.verification)),
        ("price book", stamp.book.line),
        ("price book's SHA-256", book.sha256),
        ("runs", f"{frame['run_id'].n_unique():,}"),
        ("devices", f"{frame['hardware_id'].drop_nulls().n_unique():,}"),
        ("charges", f"{frame.height:,} rows"),
        ("corrections", f"{len(bill.corrections):,} posted" if bill.close_id else "none: the period is not closed"),
    ]


def ledger(stamp: Stamp, verification: str) -> str:
    """Whether the ledger was verified when the figures were made, and up to when it was when they were exported."""
    return "; now ".join(text for text in ("verified" if stamp.verified else "NOT VERIFIED", verification) if text)


def warnings(stamp: Stamp) -> list[str]:
    """What must be seen before any figure is."""
    lines = []
    if not stamp.verified:
        lines.append("UNVERIFIED LEDGER: the ledger's hash chain did not hold, so no figure here can be relied on.")
    if stamp.book.example:
        lines.append(f"{EXAMPLE_PRICES}: the price book {stamp.book.text} is made up, so no figure here is a cost.")
    if stamp.provenance == "simulated":
        lines.append("SIMULATED: these figures come from a model of a deployment. No such money was spent.")
    return lines
