from pathlib import Path

import pytest

from rose.events import Power
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing.audit.evidence import DeviceHour, gather, spans
from rose.pricing.closing.store import watermark
from tests.ledger.conftest import flip
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, begun, late_slice, slice_, turn, write

OF = DeviceHour(run_id="run", provenance="live", device_id="s0", hour_ns=T0_NS)


def test_the_events_of_an_hour_are_all_there(fleet: Path) -> None:
    evidence = gather(Ledger(fleet), OF)
    assert [(row["seq"], row["lease_id"]) for row in evidence.slices] == [(3, None), (4, "L1"), (5, None)]
    assert [(row["tokens"], row["recomputed_tokens"], row["task"]) for row in evidence.tokens] == [
        (200, 0, "maze"),
        (60, 0, "maze"),
        (40, 40, "maze"),
    ]
    assert [row["wire_bytes"] for row in evidence.syncs] == [10**10]
    assert [row["energy_mw_ns"] for row in evidence.readings] == [600_000 * 3300 * 10**9]
    assert evidence.late == 0
    t0_ns, t1_ns = T0_NS + 3300 * 10**9, T0_NS + HOUR_NS
    write(fleet, [Power(device_id="s0", t0_ns=t0_ns, t1_ns=t1_ns, power_mw=None, source="not measured")], "unmetered")
    assert gather(Ledger(fleet), OF).readings == evidence.readings
    nothing = gather(Ledger(fleet), DeviceHour(run_id="run", provenance="replay", device_id="s0", hour_ns=T0_NS))
    assert not any((nothing.slices, nothing.tokens, nothing.syncs, nothing.readings))


def test_what_crosses_the_end_of_an_hour_is_cut_there(tmp_path: Path) -> None:
    root = write(tmp_path / "ledger", [*begun(), slice_(3000, serving=600, idle=600)])
    parts = [
        gather(Ledger(root), DeviceHour(run_id="run", provenance="live", device_id="s0", hour_ns=T0_NS + n * HOUR_NS))
        for n in range(3)
    ]
    assert [[row["serving"] + row["idle"] for row in part.slices] for part in parts] == [[600 * 10**9]] * 2 + [[]]
    assert sum(part.slices[0]["serving"] for part in parts[:2]) == 600 * 10**9


def test_only_what_was_on_record_then_counts_for_a_closed_period(fleet: Path) -> None:
    mark = watermark(Ledger(fleet))
    write(fleet, [late_slice(), turn("t2", 2200, 5)], "late")
    write(fleet, [turn("t2", 2300, 5)])
    evidence = gather(Ledger(fleet), OF, mark)
    assert (len(evidence.slices), len(evidence.tokens), evidence.late) == (3, 3, 3)
    assert len(gather(Ledger(fleet), OF).slices) == 4
    # The task of a trajectory that had not ended was not known.
    assert [row["task"] for row in gather(Ledger(fleet), OF, {"test": (10, mark["test"][1])}).tokens] == [
        None,
        None,
        None,
    ]


def test_events_are_found_in_their_files_with_their_chain(fleet: Path) -> None:
    evidence = gather(Ledger(fleet), OF)
    (span,) = spans(Ledger(fleet), evidence.slices, Ledger(fleet).verify())
    assert (span.writer, span.first_seq, span.last_seq, span.events, span.holds) == ("test", 3, 5, 3, True)
    (file,) = span.files
    assert (fleet / file).exists()
    flip(fleet / file, -9)
    with pytest.raises(LedgerError):
        list(spans(Ledger(fleet), evidence.slices, Ledger(fleet).verify()))
