from fractions import Fraction
from typing import Any

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges.allocation import allocate, shared
from tests.pricing.charges.test_pricing import HOUR, T0_NS, S, slice_
from tests.pricing.charges.test_tenures import BOOK, device, run


def test_time_that_nobody_shares_has_no_other_measure(write_ledger: Any) -> None:
    result = charges.price(Ledger(write_ledger([run(), device("joined", 0), slice_(0, rollout=3600)])), BOOK)
    assert shared(result) == ()
    allocation = allocate(result)
    assert (allocation.shared, allocation.measured_ns()) == ((), allocation.bucket_ns())


def test_each_hour_has_its_own_part(write_ledger: Any) -> None:
    """Three runs hold the first half of the second hour, and two of them what is left of it."""
    made = [slice_(0, rollout=3600), slice_(3600, lease_id="L", rollout=1800, idle=1800)]
    root = write_ledger([run(), device("joined", 0), *made, device("left", 7200)])
    for name, to_s in (("a", 7200), ("b", 5400)):
        other = [run(), device("joined", 3600, "x"), slice_(3600, "x", rollout=1200), device("left", to_s, "x")]
        write_ledger(other, root=root, writer=name, run_id=name)
    result = charges.price(Ledger(root), BOOK, run_id="run")
    # 600 s of 1,800 s, then 900 s of 1,800 s; all three worked for 4,200 s of an hour.
    part, room = Fraction(1500, 3600), Fraction(3600, 4200)
    assert {(time.hour_ns - T0_NS) // HOUR for time in shared(result)} == {1}
    by_bucket = {time.bucket: time for time in shared(result)}
    assert by_bucket.keys() == {"rollout", "idle"}
    for time in by_bucket.values():
        assert (time.lease_id, time.part, time.ns) == ("L", part, 750 * S)
        assert (time.measured_ns, time.others_ns) == (1800 * S, 1050 * S)
        # Nobody worked for more than 1,800 s of it, so all that is reported as idle may have been.
        assert time.room == (room if time.bucket == "rollout" else 1)
        assert time.hardware_share * time.ns == 1800 * S * time.room
    allocation = allocate(result)
    measured = {"rollout": 5400 * S, "idle": 1800 * S}
    assert allocation.measured_ns() | {} == dict.fromkeys(allocation.bucket_ns(), 0) | measured
    assert allocation.in_pools("rollout").shared == ()


def test_two_names_of_one_run_for_one_device_have_their_own_time(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), device("joined", 0, "e"), slice_(0, rollout=1200), slice_(0, "e", rollout=600)]
    allocation = allocate(charges.price(Ledger(write_ledger(made)), BOOK))
    measured = {
        d.device_id: d.bucket_ns["rollout"]
        + sum(t.others_ns for t in allocation.shared if (t.device_id, t.bucket) == (d.device_id, "rollout"))
        for d in allocation.devices
    }
    assert measured == {"d": 1200 * S, "e": 600 * S}
