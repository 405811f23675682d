from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from rose.ledger import catalog
from rose.pricing.borrowing import scale_down
from rose.pricing.borrowing.scale_down import DECISION_COLUMNS, Span, decisions, read, recorded
from rose.pricing.money import PricingError

T0_NS = 1_780_272_000 * 10**9
HOUR_NS = 3600 * 10**9


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "spans.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_spans_are_read_in_order_whatever_their_time_zone(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        "device_id,from,to",
        "s1,2026-06-01T02:00:00+02:00,2026-06-01T01:00:00Z",
        " s0 ,2026-06-01T00:00:00.000001Z,2026-06-01T02:00:00Z",
    )
    assert read(path) == (Span("s0", T0_NS + 1000, T0_NS + 2 * HOUR_NS), Span("s1", T0_NS, T0_NS + HOUR_NS))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["device,from,to"], r"line 1 must be `device_id,from,to`"),
        (["device_id,from,to", "s0,yesterday,2026-06-01T00:00:00Z"], "line 2: from must be a time"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00,2026-06-02T00:00:00Z"], "has no time zone"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z,2026-06-01T00:00:00Z"], "line 2: to .* must be after"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z"], "line 2 must have a value in each"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,x"], "line 2 must have a value in each"),
        (
            [
                "device_id,from,to",
                "s0,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z",
                "s0,2026-06-01T23:00:00Z,2026-06-03T00:00:00Z",
            ],
            "two spans of device 's0' overlap",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(PricingError, match=words):
        read(file_of(tmp_path, *lines))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PricingError, match=r"cannot read .*none\.csv"):
        read(tmp_path / "none.csv")


HEADER = ",".join(DECISION_COLUMNS)
KEPT = "s0,h100-sxm,kept,2026-06-01T00:00:00Z,2026-06-01T02:00:00Z,autoscaler,"


def test_decisions_are_read_with_who_made_them_and_told_apart_by_what_they_say(tmp_path: Path) -> None:
    let_go = "r1,h100-sxm,let_go,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,Kim,serving lends enough"
    one, other = decisions(file_of(tmp_path, HEADER, KEPT, let_go))
    assert (one.device_id, one.decision, one.t0_ns, one.t1_ns) == ("s0", "kept", T0_NS, T0_NS + 2 * HOUR_NS)
    assert (other.decision, other.decided_by, other.reason) == ("let_go", "Kim", "serving lends enough")
    assert one.event_id != other.event_id
    assert decisions(file_of(tmp_path, HEADER, KEPT))[0].event_id == one.event_id


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (KEPT.replace("kept", "sold"), "line 2: decision must be kept or let_go, got 'sold'"),
        (KEPT.replace("autoscaler", ""), "line 2 must have a value in each of device_id, device_class, decision"),
        (KEPT.replace("T02:00:00Z", "T00:00:00Z"), "line 2: to .* must be after"),
    ],
)
def test_a_decision_that_cannot_be_used_is_refused_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(PricingError, match=words):
        decisions(file_of(tmp_path, HEADER, line))


def test_a_decision_that_overlaps_one_in_the_ledger_is_not_recorded(tmp_path: Path, sample: Path) -> None:
    def record(*lines: str) -> None:
        scale_down.record(sample, "run", "replay", decisions(file_of(tmp_path, HEADER, *lines)))

    record(KEPT)
    record(KEPT)
    overlapping = KEPT.replace("T00:00:00Z", "T01:59:59Z").replace("T02:00:00Z", "T03:00:00Z")
    with pytest.raises(
        PricingError, match="device 's0' has one already from 2026-06-01T00:00:00Z to 2026-06-01T02:00:00Z"
    ):
        record(overlapping.replace("s0", "s1"), overlapping)
    record(KEPT, KEPT.replace("T02:00:00Z", "T03:00:00Z").replace("T00:00:00Z", "T02:00:00Z"))
    with closing(catalog.connect(sample)) as connection:
        starts = connection.execute("SELECT device_id, t0_ns FROM scale_down ORDER BY ALL").fetchall()
    assert starts == [("s0", T0_NS), ("s0", T0_NS + 2 * HOUR_NS)]


def test_a_class_that_the_device_never_had_is_not_recorded(tmp_path: Path, sample: Path) -> None:
    def record(line: str) -> None:
        scale_down.record(sample, "run", "replay", decisions(file_of(tmp_path, HEADER, line)))

    with pytest.raises(PricingError, match="device_class 'b200' is not what device 's0' is in the ledger: write h100"):
        record(KEPT.replace("h100-sxm", "b200"))
    # A device of which the ledger knows nothing may have been of any.
    record(KEPT.replace("h100-sxm", "b200").replace("s0", "s9"))


def test_time_that_several_recorded_decisions_keep_is_one_span() -> None:
    times_h = [("s0", 0, 2), ("s0", 1, 3), ("s0", 1, 2), ("s0", 4, 5), ("s1", 1, 2)]
    rows = [
        {"device_id": name, "decision": "kept", "t0_ns": t0 * HOUR_NS, "t1_ns": t1 * HOUR_NS}
        for name, t0, t1 in times_h
    ]
    let_go = {"device_id": "s0", "decision": "let_go", "t0_ns": 3 * HOUR_NS, "t1_ns": 4 * HOUR_NS}
    assert recorded([*reversed(rows), let_go]) == (
        Span("s0", 0, 3 * HOUR_NS),
        Span("s0", 4 * HOUR_NS, 5 * HOUR_NS),
        Span("s1", HOUR_NS, 2 * HOUR_NS),
    )
