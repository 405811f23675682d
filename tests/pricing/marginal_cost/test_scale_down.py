from contextlib import closing
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rose import events
from rose.cli import app
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing.answers.run_report import Report
from rose.pricing.borrowing.comparison import ADDED, CAPACITY, CASH, LET_GO
from rose.pricing.charges.allocation import Allocation
from rose.pricing.marginal_cost import scale_down
from rose.pricing.marginal_cost.scale_down import COLUMNS, decisions, let_go_usd, spans_of
from rose.pricing.money import NS_PER_HOUR, PricingError
from rose.pricing.price_books.pricebook import parse
from tests.pricing.answers.conftest import device_cost
from tests.pricing.charges.test_tenures import device
from tests.pricing.conftest import T0_NS, saved_in_run
from tests.pricing.price_books import price_book

HOUR_NS = NS_PER_HOUR
HEADER = ",".join(COLUMNS)
KEPT = "s0,h100-sxm,kept,2026-06-01T00:00:00Z,2026-06-01T02:00:00Z,autoscaler,"


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "decisions.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_decisions_are_read_with_who_made_them_and_told_apart_by_what_they_say(tmp_path: Path) -> None:
    let_go = "r1,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,Kim,serving lends enough"
    one, other = decisions(file_of(tmp_path, HEADER, KEPT, let_go))
    assert (one.device_id, one.decision, one.t0_ns, one.t1_ns) == ("s0", "kept", T0_NS, T0_NS + 2 * HOUR_NS)
    assert (other.decision, other.decided_by, other.reason) == ("let_go", "Kim", "serving lends enough")
    assert one.event_id != other.event_id
    assert decisions(file_of(tmp_path, HEADER, KEPT))[0].event_id == one.event_id


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["device,from,to"], "line 1 must be `device_id,device_class,decision"),
        ([HEADER, KEPT.replace("kept", "sold")], "line 2: `decision` must be kept or let_go, got 'sold'"),
        ([HEADER, KEPT.replace("autoscaler", "")], "line 2 must have a value in each of device_id, device_class"),
        ([HEADER, f"{KEPT},x"], "line 2 must have a value in each"),
        ([HEADER, KEPT.replace("T02:00:00Z", "T00:00:00Z")], "line 2: `to` .* must be after"),
        ([HEADER, KEPT.replace("2026-06-01T00:00:00Z", "yesterday")], "line 2: `from` must be a time"),
        ([HEADER, KEPT.replace("T02:00:00Z", "T02:00:00")], "has no time zone"),
        ([HEADER, KEPT, KEPT.replace("T00:00:00Z", "T01:00:00Z")], "two spans of device 's0' overlap"),
    ],
)
def test_what_cannot_be_used_is_refused_by_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(PricingError, match=words):
        decisions(file_of(tmp_path, *lines))
    with pytest.raises(PricingError, match=r"cannot read .*none\.csv"):
        decisions(tmp_path / "none.csv")


def test_a_decision_that_overlaps_one_in_the_ledger_is_not_recorded(tmp_path: Path, sample: Path) -> None:
    def record(*lines: str) -> None:
        scale_down.record(Ledger(sample), "run", "replay", decisions(file_of(tmp_path, HEADER, *lines)))

    record(KEPT)
    record(KEPT)
    overlapping = KEPT.replace("T00:00:00Z", "T01:59:59Z").replace("T02:00:00Z", "T03:00:00Z")
    with pytest.raises(
        PricingError, match=r"decision on device 's0' from 2026-06-01T00:00:00\.000000Z to 2026-06-01T02:00:00"
    ):
        record(overlapping.replace("s0", "s1"), overlapping)
    record(KEPT, KEPT.replace("T02:00:00Z", "T03:00:00Z").replace("T00:00:00Z", "T02:00:00Z"))
    with pytest.raises(PricingError, match="device 's0' is not of device_class 'b200' in the ledger: write h100"):
        record(KEPT.replace("h100-sxm", "b200"))
    with closing(catalog.connect(sample)) as connection:
        starts = connection.execute("SELECT device_id, t0_ns FROM scale_down ORDER BY ALL").fetchall()
    assert starts == [("s0", T0_NS), ("s0", T0_NS + 2 * HOUR_NS)]
    # A device of which the ledger knows nothing may have been of any class.
    record(KEPT.replace("h100-sxm", "b200").replace("s0", "s9"))


def test_time_that_several_decisions_name_is_one_span() -> None:
    rows: list[dict[str, Any]] = [
        {"device_id": name, "decision": "kept", "device_class": "c", "t0_ns": t0 * HOUR_NS, "t1_ns": t1 * HOUR_NS}
        for name, t0, t1 in [("s0", 0, 2), ("s0", 1, 3), ("s0", 1, 2), ("s0", 4, 5), ("s1", 1, 2)]
    ]
    rows.append(rows[0] | {"decision": "let_go", "t0_ns": 3 * HOUR_NS, "t1_ns": 4 * HOUR_NS})
    # Of another class, it counts from where the first one ends.
    rows.append(rows[3] | {"device_class": "d", "t1_ns": 6 * HOUR_NS})
    spans = [(span.device_id, span.from_ns // HOUR_NS, span.to_ns // HOUR_NS) for span, _ in spans_of(rows, "kept")]
    assert spans == [("s0", 0, 3), ("s0", 4, 5), ("s0", 5, 6), ("s1", 1, 2)]


@pytest.mark.long
def test_recorded_decisions_are_charged_and_saved(
    write_ledger: Any, sample: Path, sample_report: Report, tmp_path: Path
) -> None:
    """A serving device was kept for a lease, and a dedicated one let go for the hour and half an hour more."""
    file = file_of(
        tmp_path,
        HEADER,
        "s0,h100-sxm,kept,2026-06-01T00:10:00Z,2026-06-01T00:15:00Z,autoscaler,",
        "r1,h100-sxm,let_go,2026-05-31T23:30:00Z,2026-06-01T01:00:00Z,Kim,serving lends enough",
        # r0 is in the fleet all the same, r9 never was.
        "r0,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-01T01:00:00Z,Kim,by mistake",
        "r9,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-01T01:00:00Z,Kim,",
    )
    made = [device("joined", -7200, "r1", pool="rollout"), device("left", -3600, "r1", pool="rollout")]
    write_ledger(made, root=sample, run_id="earlier")
    before = sample_report.section.table("savings")
    command = ["borrow", "--decisions", str(file), "--ledger", str(sample), "--run", "run", "--only", "price"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "4 decisions of run run are in the ledger" in done.stderr
    with closing(catalog.connect(sample)) as connection:
        assert connection.execute("SELECT count(*) FROM scale_down").fetchall() == [(4,)]
    # At the price of a dearer class it would save what nobody paid.
    dearer = events.ScaleDown(
        device_id="r1", device_class="h200", decision="let_go", t0_ns=T0_NS, t1_ns=at_ns(1), decided_by="Kim"
    )
    write_ledger([dearer], root=sample, writer="kim")
    after = saved_in_run(sample, "run")

    def moved(name: str) -> int:
        return int(after.row(name)["value"].value - before.row(name)["value"].value)

    hour, kept = 2_350_000_000, 2_350_000_000 * 300 / 3600
    assert moved(ADDED) == pytest.approx(kept, abs=1)
    assert moved(CASH) == pytest.approx(hour - kept, abs=1)
    assert moved(CAPACITY) == 0
    assert (moved(LET_GO), before.row(LET_GO)["value"].value) == (hour, 0)


DAY = 24
#: $2 an hour, from the second day $3.
PRICES = price_book.toml(
    "b",
    price_book.device("h100-sxm", "2", valid_to=date(2026, 6, 2)),
    price_book.device("h100-sxm", "3", valid_from=date(2026, 6, 2)),
    price_book.electricity("0.1"),
    price_book.LENDING,
    price_book.TOKENS,
)
RISING = parse(PRICES, "b.toml")
HOURLY = parse(PRICES.replace("commitment", "bought_in_hours = 1\ncommitment"), "b.toml")


def fleet(*stays_h: tuple[float, float]) -> Allocation:
    """Two days of r0, and of r1 what is given."""
    return Allocation(
        devices=tuple(
            device_cost(device_id, "rollout", spans[0][0], spans[-1][1], stays_ns=spans)
            for device_id, hours in {"r0": ((0.0, 2.0 * DAY),), "r1": stays_h}.items()
            if (spans := tuple((at_ns(t0_h), at_ns(t1_h)) for t0_h, t1_h in hours))
        )
    )


def at_ns(hours: float) -> int:
    return T0_NS + int(hours * NS_PER_HOUR)


def let_go(t0_h: float, t1_h: float, device_class: str = "h100-sxm") -> dict[str, Any]:
    times = {"t0_ns": at_ns(t0_h), "t1_ns": at_ns(t1_h)}
    return {"device_id": "r1", "decision": "let_go", "device_class": device_class, "known_class": True} | times


def test_time_that_several_decisions_let_go_counts_once_and_for_a_class_that_the_ledger_knows() -> None:
    rows = [let_go(0, 2), let_go(1, 3), let_go(0.5, 1.5), let_go(2, 2.5), let_go(3, 4)]
    assert let_go_usd(rows, fleet(), RISING) == 8
    assert let_go_usd(rows, fleet(), HOURLY) == 8
    assert let_go_usd([row | {"known_class": False} for row in rows], fleet(), RISING) == 0


def test_time_away_is_priced_at_what_it_cost_then_until_the_device_came_back() -> None:
    for book in (RISING, HOURLY):
        assert let_go_usd([let_go(-5, 100)], fleet(), book) == 24 * 2 + 24 * 3
    rows = [let_go(1, 3)]
    assert let_go_usd(rows, fleet((0, 1), (3, 4)), RISING) == 4
    assert let_go_usd(rows, fleet((0, 1.5), (2, 2.25), (2.5, 4)), RISING) == Fraction(3, 2)
    # Neither absence is an hour, which is the least that can be bought.
    assert let_go_usd(rows, fleet((0, 1.5), (2, 2.25), (2.5, 4)), HOURLY) == 0
