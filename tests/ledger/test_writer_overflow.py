import json

from hypothesis import given
from hypothesis import strategies as st

from rose.events import BUCKETS, DeviceSlice, Power
from rose.ledger.files import rows
from rose.ledger.writer import MERGED_MAX, Overflow


def _names(kind):
    return [each.name for each in rows.fields_of(kind)]


def _add(into, event):
    into.add(event, rows.encode(event))


_NS = st.lists(st.integers(0, 10**9), min_size=7, max_size=7)
_PARTS = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([None, "l1", "l2"]), _NS, st.integers(0, 1))


@given(st.lists(_PARTS, max_size=40))
def test_merged_slices_hold_every_nanosecond_of_each_bucket_device_and_lease(parts):
    into, ends = Overflow(), {"a": 0, "b": 10**6}
    given_ns = {}
    for device, lease, buckets, gap in parts:
        named = {f"{bucket}_ns": ns for bucket, ns in zip(BUCKETS, buckets, strict=True)}
        t0 = ends[device] + gap
        ends[device] = t0 + sum(buckets)
        _add(into, DeviceSlice(device_id=device, lease_id=lease, t0_ns=t0, t1_ns=ends[device], **named))
        for name, ns in named.items():
            given_ns[device, lease, name] = given_ns.get((device, lease, name), 0) + ns
    kept_ns = {}
    drained = list(into.drain())
    for kind, values in drained:
        fields = dict(zip(_names(kind), values, strict=True))
        own = {name: fields[name] for name in (*[f"{bucket}_ns" for bucket in BUCKETS], "t0_ns", "t1_ns")}
        DeviceSlice(**own)  # Its buckets still sum to its length.
        for bucket in BUCKETS:
            key = (fields["device_id"], fields["lease_id"], f"{bucket}_ns")
            kept_ns[key] = kept_ns.get(key, 0) + fields[f"{bucket}_ns"]
    assert kept_ns == given_ns
    assert len(drained) <= len(parts)
    assert not into


def test_power_is_averaged_over_time_and_not_merged_with_what_was_not_measured():
    into = Overflow()
    _add(into, Power(device_id="d", t0_ns=0, t1_ns=10, power_mw=100, source="rapl"))
    _add(into, Power(device_id="d", t0_ns=10, t1_ns=40, power_mw=200, source="rapl"))
    ((kind, values),) = into.drain()
    assert dict(zip(_names(kind), values, strict=True))["power_mw"] == (100 * 10 + 200 * 30) // 40
    into = Overflow()
    _add(into, Power(device_id="d", t0_ns=0, t1_ns=10, power_mw=None, source="not measured", busy_share=0.5))
    _add(into, Power(device_id="d", t0_ns=10, t1_ns=20, power_mw=None, source="not measured"))
    _add(into, Power(device_id="d", t0_ns=20, t1_ns=30, power_mw=5, source="rapl"))
    merged = [dict(zip(_names(kind), values, strict=True)) for kind, values in into.drain()]
    assert [(each["t0_ns"], each["t1_ns"], each["power_mw"]) for each in merged] == [(0, 20, None), (20, 30, 5)]
    assert merged[0]["busy_share"] is None


def test_beyond_its_bound_slices_are_counted_with_their_nanoseconds():
    into = Overflow()
    for n in range(MERGED_MAX + 5):
        _add(into, Power(device_id=f"d{n}", t0_ns=0, t1_ns=10, power_mw=100, source="rapl"))
    drained = list(into.drain())
    assert [kind for kind, _ in drained] == ["power"] * MERGED_MAX + ["ledger"]
    detail = dict(zip(_names("ledger"), drained[-1][1], strict=True))["detail_json"]
    assert json.loads(detail) == {"count": 5, "kinds": {"power": {"count": 5}}}
