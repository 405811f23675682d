"""`rose report`: the cost report of a run on the command line."""

from __future__ import annotations

import json

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import BookOption, RunOption, UnverifiedOption, clear_errors
from rose.terminal import echo, echo_data


def report_command(
    ledger: LedgerOption = None,
    run: RunOption = None,
    price_book: BookOption = None,
    *,
    as_json: JsonOption = False,
    allow_unverified: UnverifiedOption = False,
) -> None:
    """Report what a run's rollouts cost: time by bucket, three cost views, cost per correct answer, serving latency."""

    from rose.ledger import verified
    from rose.ledger.access import logged
    from rose.pricing import console
    from rose.pricing.run import report

    root = ledger_root(ledger)
    with clear_errors(), logged(root, "report", f"run {run or 'newest'}, prices {price_book or 'as decided'}"):
        built = report.build(root, run, price_book, allow_unverified)
    if as_json:
        last = verified.state(root)
        echo_data(json.dumps({**built.to_json(), "verified": None if last is None else last.to_json()}, indent=2))
    else:
        console.show(built.elements(), spaced=True)
        echo(f"Ledger {verified.text(root)}")
