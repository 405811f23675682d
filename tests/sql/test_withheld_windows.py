import hashlib

from rose.events import BUCKETS, DeviceSlice, Hold, Holdout, Lease
from tests.ledger.conftest import ask
from tests.sql.conftest import SECOND, at, ns

WINDOW_NS = 100 * SECOND
#: Share of windows withheld: so large that some of the first ten are.
SHARE = 0.4


def drawn(number):
    return int(hashlib.sha256(f"5/s0/{number}".encode()).hexdigest()[:13], 16) / 2**52


def window(index, **changes):
    number = ns(0) // WINDOW_NS + index
    fields = {
        "draw": drawn(number),
        "withheld": drawn(number) < SHARE,
        "t0_ns": number * WINDOW_NS,
        "t1_ns": (number + 1) * WINDOW_NS,
    }
    return Holdout(
        at_us=at(100 * index),
        device_id="s0",
        holdout_share=SHARE,
        holdout_seed=5,
        window_ns=WINDOW_NS,
        washout_ns=40 * SECOND,
        **{**fields, **changes},
    )


def test_the_draw_is_made_again_and_compliance_is_seen(record, by_hand, tmp_path):
    windows = [window(index) for index in range(10)]
    withheld = [index for index, event in enumerate(windows) if event.withheld]
    assert 2 <= len(withheld) <= 8
    root = record(tmp_path / "ledger", windows)
    columns = ("windows", "withheld", "drawn_otherwise", "lent_windows", "held_ns")
    (row,) = by_hand(root, "withheld_windows_by_device")
    assert tuple(row[column] for column in columns) == (10, len(withheld), 0, 0, 0)
    assert row["withheld_share"] == len(withheld) / 10
    # Another draw than the seed gives, one that was not kept to, and a lease that lived on in a withheld window.
    terms = {"kv_budget_bytes": 1, "compute_share": 1.0, "device_id": "s0", "lease_id": "L"}
    late_us = windows[withheld[0]].t1_ns // 1000 - 9
    wrong = [
        window(10, draw=0.5 * drawn(ns(0) // WINDOW_NS + 10)),
        window(11, withheld=not window(11).withheld),
        Lease(at_us=late_us, action="granted", expires_at_us=late_us + 8, **terms),
        Hold(at_us=at(50), device_id="s0", reason="withheld", count=1, duration_ns=7),
        Hold(at_us=at(60), device_id="s0", reason="regret", count=1, duration_ns=8),
    ]
    root = record(tmp_path / "wrong", [*windows, *wrong])
    (row,) = by_hand(root, "withheld_windows_by_device")
    assert tuple(row[column] for column in columns)[2:] == (2, 1, 7)
    assert row["windows"] == 12


def test_a_lease_that_nothing_closed_was_in_force_up_to_the_last_slice_that_names_it(record, by_hand, tmp_path):
    """Its agent was killed before the withheld window, which begins before the lease would have expired."""
    windows = [window(0, withheld=False), window(1, withheld=True)]
    granted = Lease(
        at_us=at(5),
        action="granted",
        expires_at_us=at(600),
        kv_budget_bytes=1,
        compute_share=1.0,
        device_id="s0",
        lease_id="L",
    )
    for last_s, lent in ((90, 0), (150, 1)):
        spent = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 0)
        spent["idle_ns"] = ns(last_s) - ns(5)
        named = DeviceSlice(at_us=at(90), device_id="s0", lease_id="L", t0_ns=ns(5), t1_ns=ns(last_s), **spent)
        (row,) = by_hand(record(tmp_path / f"{last_s}", [*windows, granted, named]), "withheld_windows_by_device")
        assert (row["withheld"], row["lent_windows"]) == (1, lent)


def test_a_window_knows_of_the_one_before_it(record, tmp_path):
    windows = [window(0, withheld=True), window(1, withheld=False), window(3, withheld=False), window(4)]
    rows = ask(record(tmp_path / "ledger", windows), "SELECT number, after_withheld FROM holdout ORDER BY number")
    first = ns(0) // WINDOW_NS
    assert rows == [(first, None), (first + 1, True), (first + 3, None), (first + 4, False)]
