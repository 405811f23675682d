import dataclasses
import typing

import pytest

from rose import event_fields
from rose.event_columns import COMMON_COLUMNS, all_columns, columns, fields
from rose.event_fields import Range
from rose.events import BUCKETS, KINDS, DeviceSlice, Power


def test_every_kind_is_named_by_its_key_and_may_not_be_changed() -> None:
    for kind, cls in KINDS.items():
        assert cls.kind == kind
        assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_the_columns_of_a_kind_are_its_own_fields_after_the_common_ones() -> None:
    assert list(all_columns())[: len(COMMON_COLUMNS)] == list(COMMON_COLUMNS)
    for kind, cls in KINDS.items():
        assert set(columns(kind)) == {field.name for field in dataclasses.fields(cls)} - set(COMMON_COLUMNS)
        assert columns(kind).items() <= all_columns().items()


def test_each_integer_has_a_range() -> None:
    every = [field for kind in KINDS for field in fields(kind)]
    assert [field.name for field in every if field.sql_type == "BIGINT" and field.range is None] == []


def test_an_unknown_kind_has_no_columns() -> None:
    with pytest.raises(KeyError):
        columns("lunch")


@pytest.mark.parametrize(("idle_ns", "sums"), [(40, True), (39, False), (41, False)])
def test_a_device_slice_accounts_for_every_nanosecond(idle_ns: int, sums: bool) -> None:
    spent = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 10) | {"idle_ns": idle_ns}

    def build() -> DeviceSlice:
        return DeviceSlice(device_id="d", t0_ns=100, t1_ns=200, **spent)

    if sums:
        assert build().idle_ns == idle_ns
    else:
        with pytest.raises(ValueError, match=f"buckets sum to {60 + idle_ns} ns, not 100"):
            build()


@pytest.mark.parametrize(("power_mw", "source"), [(None, "nvml-energy"), (0, "not measured")])
def test_power_is_missing_just_where_it_was_not_measured(power_mw: int | None, source: str) -> None:
    with pytest.raises(ValueError, match=f"power: source '{source}' does not go with power_mw {power_mw}"):
        Power(t0_ns=0, t1_ns=1, power_mw=power_mw, source=source)
    assert Power(t0_ns=0, t1_ns=1, power_mw=None, source="not measured").power_mw is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Share", "a number from 0 to 1"),
        ("Count", "an integer from 0 to 36028797018963967"),
        ("DurationNs", "an integer from 0 to 36028797018963967 nanoseconds"),
        ("OffsetNs", "an integer from -4611686018427387903 to 4611686018427387903 nanoseconds"),
        ("Difference", "an integer from -36028797018963967 to 36028797018963967"),
    ],
)
def test_a_range_says_what_it_wants(name: str, words: str) -> None:
    (limits,) = (mark for mark in typing.get_args(getattr(event_fields, name)) if isinstance(mark, Range))
    assert str(limits) == words
