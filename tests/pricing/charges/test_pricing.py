from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from rose import events
from rose.ledger.files import catalog, layout
from rose.ledger.ledger import Ledger
from rose.ledger.verify import faulty_events
from rose.pricing import charges
from rose.pricing.charges import pricing
from rose.pricing.closing.close import totals
from rose.pricing.money import PricingError, charge_nano_usd
from rose.pricing.period import Period
from rose.pricing.price_books.pricebook import PriceBookError, load, parse
from tests.ledger.conftest import ask
from tests.pricing import any_event
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, T0_NS, S, begun, fleet_events, judged, us, write

BOOK = load("example")
HOUR = 3600 * S
H1 = T0_NS + HOUR
CITED = 'source = "inventory"\nsource_date = 2026-01-01\n'
#: 500 W for an hour, in milliwatt-nanoseconds.
HOUR_MW_NS = 500_000 * 3600 * 10**9


def begin(device_id: str = "d", pool: Any = "serving", tags: str | None = None) -> list[events.Event]:
    return [
        events.Run(action="started", name="n", at_us=us(0), tags_json=tags),
        any_event.device(device_id=device_id, t_ns=T0_NS, pool=pool, at_us=us(0)),
    ]


def slice_(from_s: float, device_id: str = "d", lease_id: str | None = None, **seconds: float) -> events.DeviceSlice:
    return any_event.slice_(T0_NS + int(from_s * S), device_id, lease_id=lease_id, unit_ns=S, **seconds)


def power(t0_s: int, t1_s: int, power_mw: int | None, device_id: str = "d") -> events.Power:
    return any_event.power(device_id=device_id, t0_ns=T0_NS + t0_s * S, t1_ns=T0_NS + t1_s * S, power_mw=power_mw)


def turn(trajectory_id: str, at_s: float, tokens: int, **fields: Any) -> events.Turn:
    plain = {"device_id": "d", "group_id": "g", "step": 1, "policy_version": 3, "answer_tokens": 1}
    plain |= {"prompt_tokens": 30, "cached_tokens": 10, "output_tokens": tokens, "at_us": us(at_s)}
    return any_event.turn(trajectory_id=trajectory_id, **(plain | fields))


def by(frame: pl.DataFrame, *keys: str) -> dict[Any, Any]:
    summed = frame.group_by(*keys).agg(pl.col("ns", "tokens", "cost_nano").sum())
    return {row[0] if len(keys) == 1 else row[: len(keys)]: row[len(keys) :] for row in summed.iter_rows()}


#: Runs by name, priced as one ledger.
RUNS: dict[str, list[events.Event]] = {
    # Three thirds of an hour and 1 ns: no division of 2.35 $/h is whole.
    "thirds": [
        *begin(),
        slice_(0, serving=1200),
        slice_(1200, headroom=1200),
        slice_(2400, idle=1200),
        slice_(3600, idle=1e-9),
    ],
    "fates": [
        *begin(tags='{"team": "research", "serving_team": "chat"}'),
        slice_(0, lease_id="L", rollout=1000, serving=600),
        turn("a", 10, 600, lease_id="L"),
        turn("b", 20, 300, lease_id="L", policy_version=4),
        turn("c", 30, 40, lease_id="L", outcome="preempted"),
        turn("c", 40, 30, lease_id="L", attempt=1, prompt_tokens=120, cached_tokens=30),
        turn("x", 50, 7, lease_id="gone"),
        events.Preemption(action="cut", reason="r", device_id="d", lease_id="L", tokens_lost=0, at_us=us(41)),
        *judged("a", 60, accepted=True),
        *judged("b", 60, accepted=False),
        *judged("c", 60, accepted=True, stale=True),
    ],
    "idle": [
        *begin(),
        slice_(0, idle=10),
        slice_(10, lease_id="L", idle=20),
        *begin("r", "rollout")[1:],
        slice_(0, "r", idle=40, rollout=10),
    ],
    "metered": [*begin(), slice_(0, idle=7200), power(1800, 5400, 800_000)],
    # One reading crosses the end of an hour; beside a meter, one that measures nothing reads nothing twice.
    "unmetered": [*begin(), slice_(0, idle=5400), power(0, 60, 1000), power(0, 5400, None)],
    "no device time": [*begin(), any_event.sync(device_id="d", wire_bytes=10**9, source="s", at_us=us(10))],
    "no trajectory": [*begin(), slice_(0, rollout=10), replace(turn("a", 5, 3), trajectory_id=None)],
    **{f"tags {tags}": [*begin(tags=tags), slice_(0, idle=10)] for tags in ("not json", '{"team": ""}', "[1]", None)},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "ledger"
    for number, (run_id, made) in enumerate(RUNS.items()):
        write(root, made, f"w{number}", "live", run_id)
    return root


@pytest.fixture(scope="module")
def whole(root: Path) -> charges.Charges:
    return charges.price(Ledger(root), BOOK)


@pytest.fixture(scope="module")
def frame(whole: charges.Charges) -> pl.DataFrame:
    return whole.frame


def test_an_hour_is_rounded_once_and_its_rows_sum_to_it(frame: pl.DataFrame) -> None:
    own = frame.filter(run_id="thirds")
    assert by(own, "bucket") == {
        "serving": (1200 * S, 0, 783_333_334),
        "headroom": (1200 * S, 0, 783_333_333),
        # 1 ns costs 0.00065 nano-dollars.
        "idle": (1200 * S + 1, 0, 783_333_333),
    }
    assert own["cost_nano"].sum() == 2_350_000_000 + charge_nano_usd(BOOK.device[0].usd_per_hour, 1)


def test_rollout_time_is_divided_by_what_became_of_the_tokens_made_in_it(frame: pl.DataFrame) -> None:
    result = frame.filter(run_id="fates")
    # Prices of 1 and 3 a million: 90 prompt tokens computed again weigh as 30 generated ones, and 1000 in all.
    assert by(result.filter(bucket="rollout"), "policy_version", "task", "fate", "cause") == {
        (3, "maze", "accepted", None): (600 * S, 600, 391_666_666),
        (4, "maze", "rejected", "rejected"): (300 * S, 300, 195_833_333),
        (3, "maze", "stale", "stale"): (70 * S, 70, 45_694_445),
        (3, "maze", "recomputed", "recomputed after preemption"): (30 * S, 0, 19_583_333),
        # No time is left for tokens of another lease.
        (3, None, "open", None): (0, 7, 0),
    }
    assert by(result, "team")["research"][2] + by(result, "team")["chat"][2] == result["cost_nano"].sum()
    assert by(result, "bucket", "team")["serving", "chat"][0] == 600 * S


def test_a_later_verdict_moves_the_dollars_and_keeps_their_sum(write_ledger: Any) -> None:
    root = write_ledger([*begin(), slice_(0, rollout=100), turn("a", 10, 5)])
    before = charges.price(Ledger(root), BOOK).frame
    assert set(before["fate"].drop_nulls()) == {"open"}
    write_ledger(judged("a", 20, accepted=False), root=root, writer="second")
    write_ledger(judged("a", 30, accepted=True), root=root, writer="third")
    after = charges.price(Ledger(root), BOOK).frame
    assert set(after["fate"].drop_nulls()) == {"accepted"}
    assert after["cost_nano"].sum() == before["cost_nano"].sum()


def test_idle_that_could_have_been_lent_is_told_apart(frame: pl.DataFrame) -> None:
    result = frame.filter(run_id="idle")
    assert result.filter(bucket="rollout")["fate"].to_list() == ["no tokens"]
    assert by(result.filter(bucket="idle"), "cause") == {
        "could have been lent": (10 * S, 0, 6_527_778),
        "leased, not used": (20 * S, 0, 13_055_555),
        "could not be lent": (40 * S, 0, 26_111_111),
    }


def test_a_sync_is_charged_to_its_lease_or_the_next_one(write_ledger: Any) -> None:
    def sync(at_s: float, lease_id: str | None, size: int) -> events.Sync:
        sizes = {"wire_bytes": size, "dense_bytes": size}
        return any_event.sync(device_id="d", lease_id=lease_id, policy_version=1, at_us=us(at_s), **sizes)

    def lease(at_s: float, lease_id: str) -> events.Lease:
        return any_event.lease(device_id="d", lease_id=lease_id, expires_at_us=us(9999), at_us=us(at_s))

    root = write_ledger([*begin(), slice_(0, idle=600), sync(10, None, 10**9), sync(30, "A", 1), sync(40, None, 2)])
    nobody = charges.price(Ledger(root), BOOK).frame.filter(kind="transfer")
    assert nobody.select("lease_id", "bytes", "cost_nano").rows() == [(None, 10**9 + 2, 20_000_000), ("A", 1, 0)]
    # The leases reach the ledger later than the syncs that were sent for them.
    write_ledger([lease(20, "A"), lease(50, "B")], root=root, writer="second")
    result = charges.price(Ledger(root), BOOK).frame.filter(kind="transfer")
    assert result.select("lease_id", "bytes", "cost_nano").rows() == [("A", 10**9 + 1, 20_000_000), ("B", 2, 0)]
    assert set(result["route"]) == {"inter-region"}


def test_metered_energy_is_billed_unless_the_device_s_price_holds_it(root: Path, frame: pl.DataFrame) -> None:
    energy = frame.filter(run_id="metered", kind="energy")
    # 0.8 kWh over two hours at 0.10 a kWh and PUE 1.25.
    assert energy["energy_mw_ns"].to_list() == [800_000 * 1800 * S] * 2
    assert energy["cost_nano"].to_list() == [50_000_000] * 2
    assert frame.filter(run_id="unmetered")["energy_mw_ns"].sum() == 60 * 1000 * S
    included = [price.model_copy(update={"energy_included": True}) for price in BOOK.device]
    rented = BOOK.model_copy(update={"device": included, "sha256": "rented"})
    assert charges.price(Ledger(root), rented, run_id="metered").frame.filter(kind="energy").is_empty()


def test_periods_partition_the_bill(root: Path, whole: charges.Charges) -> None:
    parts = [charges.price(Ledger(root), BOOK, Period(ns, ns + HOUR)) for ns in (T0_NS, H1)]
    assert pl.concat([part.frame for part in parts]).equals(whole.frame)
    assert (whole.from_ns, whole.to_ns) == (T0_NS, T0_NS + 2 * HOUR)
    assert sum(stay.t1_ns - stay.t0_ns for part in parts for stay in part.stays) == sum(
        stay.t1_ns - stay.t0_ns for stay in whole.stays
    )


def test_the_period_has_the_hours_of_all_charges(write_ledger: Any) -> None:
    came = replace(begin()[1], device_id="e", hardware_id="e", t_ns=T0_NS - 1)
    gone = replace(came, action="left")  # At once, so that only its turn is left.
    root = write_ledger([*begin(), slice_(0, idle=10), came, gone, turn("t", -1, 5, device_id="e")])
    result = charges.price(Ledger(root), BOOK)
    assert result.from_ns == T0_NS - HOUR
    parts = [charges.price(Ledger(root), BOOK, Period(ns, ns + HOUR)).frame for ns in (result.from_ns, T0_NS)]
    assert pl.concat(parts).equals(result.frame)


def test_a_period_that_cannot_be_priced_is_refused(root: Path) -> None:
    asked: list[tuple[dict[str, Any], str]] = [
        ({"period": Period(T0_NS + 24 * HOUR, T0_NS + 48 * HOUR)}, "has no provisioned device time"),
        ({"provenance": "replay", "run_id": "x"}, "no provisioned device time with provenance 'replay' of run x"),
    ]
    for given, says in asked:
        with pytest.raises(PricingError, match=says):
            charges.price(Ledger(root), BOOK, **given)


def test_provenances_are_never_mixed(write_ledger: Any) -> None:
    root: Path = write_ledger([*begin(), slice_(0, idle=10)])
    write_ledger([*begin(), slice_(0, idle=20)], root=root, writer="b", run_id="made-up", provenance="simulated")
    with pytest.raises(PricingError, match="replay, simulated"):
        charges.price(Ledger(root), BOOK)
    assert charges.price(Ledger(root), BOOK, provenance="simulated").frame["ns"].sum() == 20 * S
    assert charges.price(Ledger(root), BOOK, run_id="run").frame["ns"].sum() == 10 * S


def test_a_price_that_is_missing_is_refused_only_where_it_is_needed(write_ledger: Any) -> None:
    old = begin()
    root = write_ledger([*old, slice_(0, idle=10), replace(old[1], action="left", t_ns=T0_NS + 10 * S)])
    ended = [p.model_copy(update={"valid_to": None}) for p in BOOK.device if p.valid_to is None]
    later = [p.model_copy(update={"valid_from": p.valid_from.replace(year=2027)}) for p in ended]
    with pytest.raises(PriceBookError, match="h100-sxm"):
        charges.price(Ledger(root), BOOK.model_copy(update={"device": later, "sha256": "later"}))
    at_ns = T0_NS + 400 * 24 * HOUR
    new = [replace(event, t_ns=at_ns) if isinstance(event, events.Device) else event for event in old]
    moved = replace(slice_(0, idle=30), t0_ns=at_ns, t1_ns=at_ns + 30 * S)
    write_ledger([*new, moved], root=root, writer="b", run_id="new")
    book = BOOK.model_copy(update={"device": later, "sha256": "later"})
    assert charges.price(Ledger(root), book, Period(at_ns, at_ns + HOUR)).frame["ns"].sum() == 30 * S


def test_what_is_billed_without_device_time_is_billed_all_the_same(root: Path) -> None:
    result = charges.price(Ledger(root), BOOK, run_id="no device time")
    assert result.total_nano == 20_000_000
    assert (result.from_ns, result.to_ns) == (T0_NS, T0_NS + HOUR)


def test_a_turn_of_no_trajectory_and_tags_that_say_nothing_are_charged(frame: pl.DataFrame) -> None:
    assert frame.filter(run_id="no trajectory").select("fate", "tokens").rows() == [("open", 3)]
    assert frame.filter(pl.col("run_id").str.starts_with("tags "))["team"].to_list() == ["unallocated"] * 4


def test_power_that_was_read_twice_or_of_no_device_counts_nowhere(write_ledger: Any) -> None:
    root = write_ledger([*begin(), slice_(0, idle=3600), power(0, 60, 1), power(60, 120, 1)], run_id="twice")
    assert charges.price(Ledger(root), BOOK).frame["energy_mw_ns"].sum() == 120 * S
    # What reads it again may be another host, later.
    write_ledger([power(119, 180, 1)], root=root, writer="second", run_id="twice")
    write_ledger([*begin(), slice_(0, idle=60), power(0, 60, 1, "stranger")], root=root, writer="w", run_id="strange")
    assert charges.price(Ledger(root), BOOK).frame["energy_mw_ns"].sum() == 120 * S
    assert [(fault.writer, fault.kind) for fault in faulty_events(root)[1]] == [("second", "power")]
    assert ask(root, "SELECT count(*) FROM power WHERE run_id = 'twice'") == [(2,)]


def test_power_that_cannot_be_counted_is_refused(write_ledger: Any) -> None:
    root = write_ledger([*begin(), slice_(0, idle=3600), power(0, 3600, 3_000_000)], run_id="large")
    with pytest.raises(PricingError, match=r"more than 2.5 kW"):
        charges.price(Ledger(root), BOOK, run_id="large")


def teams(tmp_path: Path, tags: str | None, *entries: str) -> dict[str, set[str]]:
    root = tmp_path / "ledger"
    if not root.exists():
        write(root, [*begun(tags), *fleet_events()[2:]])
    text = BOOK_TOML + "".join(f"\n[[device_tag]]\n{entry}\n{CITED}" for entry in entries)
    frame = charges.price(Ledger(root), parse(text, "book.toml")).frame
    assert frame["cost_nano"].sum() == BILL_NANO
    by_bucket: dict[str, set[str]] = {}
    for bucket, team in frame.select("bucket", "team").iter_rows():
        by_bucket.setdefault(bucket, set()).add(team)
    return by_bucket


@pytest.mark.long
@pytest.mark.parametrize(
    "chosen", ['device = "s0"', 'pool = "serving"', 'class = "h100-sxm"', 'hardware = "run/*"', 'hardware = "*"']
)
def test_a_device_s_team_pays_for_what_its_run_says_no_team_of(tmp_path: Path, chosen: str) -> None:
    by_bucket = teams(tmp_path, None, f'{chosen}\ntags = {{ team = "chat", centre = "4711" }}')
    assert set().union(*by_bucket.values()) == {"chat"}
    missed = chosen.replace("s0", "s1").replace("serving", "train").replace("h100", "h200").replace("*", "?")
    assert set().union(*teams(tmp_path, None, f'{missed}\ntags = {{ team = "chat" }}').values()) == {"unallocated"}
    assert set().union(*teams(tmp_path, None, f'{chosen}\ntags = {{ centre = "1" }}').values()) == {"unallocated"}


def test_the_run_s_own_tags_win(tmp_path: Path) -> None:
    by_bucket = teams(tmp_path, '{"team": "research"}', 'class = "h100-sxm"\ntags = { team = "chat" }')
    assert (by_bucket["rollout"], by_bucket["serving"], by_bucket["idle"]) == ({"research"}, {"chat"}, {"chat"})


@pytest.mark.long
def test_what_names_fewer_devices_holds(tmp_path: Path) -> None:
    entries = ['device = "s0"\ntags = { team = "chat" }', 'pool = "serving"\ntags = { team = "other" }']
    for given in (entries, entries[::-1]):
        assert set().union(*teams(tmp_path, None, *given).values()) == {"chat"}


def rows(count: int) -> pl.DataFrame:
    amounts = {"ns": 3600 * 10**9, "tokens": 0, "bytes": 0, "energy_mw_ns": HOUR_MW_NS, "cost_nano": 10}
    return pl.DataFrame([{"kind": "energy", "bucket": "energy", **amounts}] * count)


@pytest.mark.parametrize("hours", [5, 6, 720])
def test_metered_energy_of_many_hours_is_its_sum(hours):
    assert totals(rows(hours))[0]["energy_mw_ns"] == hours * HOUR_MW_NS
    assert pricing.total(rows(hours), "energy_mw_ns") == hours * HOUR_MW_NS


def test_an_amount_beyond_64_bits_is_refused_and_names_the_amount():
    dear = rows(2).with_columns(cost_nano=pl.lit(2**62))
    with pytest.raises(PricingError, match="cost_nano"):
        pricing._refuse_too_large(dear)
    pricing._refuse_too_large(rows(720))


def test_a_catalog_of_an_earlier_version_is_no_damage(tmp_path: Path) -> None:
    root = write(tmp_path / "ledger", fleet_events())
    catalog.connect(root).close()
    with duckdb.connect(root / layout.CATALOG) as older:
        older.execute("CREATE OR REPLACE VIEW sync AS SELECT 1 AS seq")
    assert charges.price(Ledger(root), BOOK).verified
