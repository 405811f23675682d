import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import run_report
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.spend.cost import Question, ask
from rose.pricing.spend.saved import Saved, saved
from tests.pricing import any_event
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, us
from tests.pricing.price_books import price_book
from tests.pricing.shared_fleet.ledger import joined, slice_, turn

DAY = Period(T0_NS, T0_NS + 24 * HOUR_NS)
DOLLAR = 10**9
#: A dedicated H100 costs $2.35 an hour, its electricity included, whether or not it works.
BOOK = pricebook.parse(
    price_book.toml(
        "fleet",
        price_book.device("h100-sxm", "2.35", energy_included=True),
        price_book.electricity("0.1"),
        ("transfer", {"route": "inter-region", "usd_per_gb": "0.02"}),
        price_book.LENDING,
        price_book.TOKENS,
    ).replace('"0.02"', "0.02"),
    "book.toml",
)
#: Who borrows, and who has the dedicated device, in each of four hours.
LABELS = {
    "one run has both": ["aa", "aa", "aa", "aa"],
    "runs take turns": ["aa", "bb", "aa", "bb"],
    "one borrows while the other has the device, then the other way round": ["ba", "ba", "ba", "ab"],
    "the borrower has the device in the last hour only": ["ba", "ba", "ba", "bb"],
}


def four_hours(labels: Sequence[str], teams: Sequence[str | None] = ("red", "blue", None)) -> Iterator[events.Event]:
    """A serving device lends half of each of four hours; a dedicated one works half of each and is idle for the rest.
    Borrowing adds 5 GB of weights, $0.10."""
    yield events.Run(action="started", name="lab", at_us=us(0), tags_json='{"team": "infra"}')
    runs = sorted(set("".join(labels)))
    for run_id, team in zip(runs, teams, strict=False):
        tags = None if team is None else json.dumps({"team": team})
        yield events.Run(action="started", name="grpo", run_id=run_id, at_us=us(1), tags_json=tags)
    yield joined("s0")
    yield joined("r0", pool="rollout")
    for hour, (borrower, owner) in enumerate(labels):
        at_s = 3600 * hour
        lease: dict[str, Any] = {"lease_id": f"L{hour}", "device_id": "s0", "rl_run_id": borrower}
        lease["expires_at_us"] = us(at_s + 3600)
        yield any_event.lease(at_us=us(at_s), **lease)
        yield slice_(at_s, "s0", borrower, f"L{hour}", serving=900, rollout=1800, idle=900)
        yield any_event.lease(action="released", at_us=us(at_s + 3600), **lease)
        yield slice_(at_s, "r0", owner, None, rollout=1800, idle=1800)
        for device_id, run_id in (("s0", borrower), ("r0", owner)):
            name = dict.fromkeys(("trajectory_id", "group_id"), f"{device_id}-{hour}")
            yield turn(run_id, at_s + 900, device_id, f"L{hour}" if device_id == "s0" else None, 1800, **name)
            yield any_event.verdict(run_id=run_id, at_us=us(at_s + 1000), accepted=True, **name)
    sent = {"wire_bytes": 5 * 10**9, "dense_bytes": 5 * 10**9, "policy_version": 1, "at_us": us(9)}
    yield any_event.sync(device_id="s0", lease_id="L0", rl_run_id=labels[0][0], **sent)
    yield events.Run(action="ended", name="lab", at_us=us(4 * 3600))


def written(root: Path, *labels: Any) -> Path:
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in four_hours(*labels):
            writer.record(event, durable=False)
    return root


def amounts(answer: Saved, attribute: str) -> list[int | None]:
    return [getattr(run.saving, attribute) for run in answer.runs]


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_what_the_fleet_saved_is_what_borrowing_added_where_idle_devices_would_have_made_it(
    tmp_path: Path, labels: list[str]
) -> None:
    answer = saved(Ledger(written(tmp_path / "ledger", labels)), DAY, BOOK)
    assert answer.fleet.cash_nano == (-DOLLAR // 10, -DOLLAR // 10)
    assert (answer.fleet.bought_nano, answer.fleet.capacity_nano) == (0, 47 * DOLLAR // 10)
    assert sum((run.saving.cash_nano or (0,))[0] for run in answer.runs) == -DOLLAR // 10
    for name in ("capacity_nano", "bought_nano", "added_nano"):
        assert sum(amount or 0 for amount in amounts(answer, name)) == getattr(answer.fleet, name)
    assert sum(answer.of_team(team).added_nano or 0 for team in answer.teams) == answer.fleet.added_nano


def test_a_period_has_the_shares_of_its_hours(tmp_path: Path) -> None:
    root = written(tmp_path / "ledger", LABELS["runs take turns"])
    halves = [saved(Ledger(root), Period(T0_NS + n * HOUR_NS, T0_NS + (n + 2) * HOUR_NS), BOOK) for n in (0, 2)]
    assert [half.fleet.added_nano for half in halves] == [DOLLAR // 20] * 2
    assert [half.fleet.capacity_nano for half in halves] == [235 * DOLLAR // 100] * 2
    # A run that the period does not have all of has no interval there.
    assert {half.fleet.cash_interval for half in halves} == {None}


def test_labels_of_runs_and_teams_change_no_figure_of_the_fleet(tmp_path: Path) -> None:
    """A random split into up to three runs of up to three teams, against all the work in one run."""
    drawn = random.Random()
    splits = [
        (["aa"] * 4, ("red",)),
        (["".join(drawn.choices("abc", k=2)) for _ in range(4)], drawn.choices("xyz", k=3)),
    ]
    assert figures(tmp_path / "one", *splits[0]) == figures(tmp_path / "split", *splits[1]), splits


def figures(root: Path, labels: Sequence[str], teams: Sequence[str]) -> list[object]:
    section = run_report.build(Ledger(written(root, labels, teams)), "fleet", BOOK).section
    tables = ("glance", "time", "borrow", "savings", "tokens", "fates", "latency", "events", "preemptions")
    cells = [
        [(getattr(cell, "value", cell), getattr(cell, "low", None), getattr(cell, "high", None)) for cell in row]
        for name in tables
        for row in section.table(name).rows
        if not str(row[0]).endswith(" step")
    ]
    spent = ask(Ledger(root), Question(period=DAY, by=("bucket", "pool", "cause")), BOOK)
    return [cells, spent.bill_nano, spent.lines, saved(Ledger(root), DAY, BOOK).fleet]
