import dataclasses
import functools
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rose import cli
from rose.events import Power
from rose.ledger.evidence import continuation, receipt
from rose.ledger.files import layout, rows, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from tests.ledger.conftest import events
from tests.long_form import usual

DAY_US = 86_400_000_000
IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=300)


#: Of every kind, some of them with long ids, on days that archiving and roll-ups tell apart.
TIMES_US = st.sampled_from([0, 1, 3, 40, 4000]).map(DAY_US.__mul__)
EVENTS = st.builds(dataclasses.replace, events, event_id=st.none() | IDS, at_us=TIMES_US)
EPOCHS = st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=4)
STEPS = st.lists(st.sampled_from(["write", "roll up", "compact", "archive"]), min_size=1, max_size=6)


def _write(root, writer, epochs):
    tail = segments.recover(root, writer)
    for epoch in epochs:
        tail = segments.begin_epoch(root, tail)
        for half in (epoch[::2], epoch[1::2]):
            batch = [(event.kind, rows.encode(event)) for event in half]
            if batch:
                tail = segments.write_next(root, tail, rows.table(writer, tail.next_seq, "r", "simulated", batch))


@settings(max_examples=int(usual("1", long="150")), deadline=None, suppress_health_check=list(HealthCheck))
@given(histories=st.lists(EPOCHS, min_size=1, max_size=3), steps=STEPS)
def test_an_honest_ledger_is_sound_against_its_own_receipts(histories, steps):
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rose.ledger.verify._RETRY_S", 0.0)
        root = layout.create(Path(home) / "ledger")
        receipts = {}
        for number, step in enumerate(["write", *steps]):
            if step == "write":
                for writer, epochs in enumerate(histories):
                    _write(root, f"w{writer}", epochs)
            elif step == "roll up":
                rollup.roll_up(Ledger(root), grace_s=0)
            elif step == "compact":
                compaction.compact(Ledger(root), grace_s=0)
            else:
                rollup.roll_up(Ledger(root), grace_s=0)
                archive.archive(Ledger(root), older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
            receipts[f"receipt {number}"] = receipt.take(Ledger(root))
            report = Ledger(root).verify(marks=continuation.marks(receipts))
            held = continuation.check(report, receipts)
            assert (report.doubts, held.problems, held.unchecked) == ([], [], []), step


def test_a_structure_that_cannot_be_read_has_an_exit_code_of_its_own(tmp_path, monkeypatch):
    root = layout.create(tmp_path / "ledger")
    _write(root, "a", [[Power(device_id="d", t0_ns=0, t1_ns=1, power_mw=1, source="rapl")]])
    # A newer library might write an index of pages.
    monkeypatch.setattr(segments.pq, "ParquetWriter", functools.partial(pq.ParquetWriter, write_page_index=True))
    _write(root, "a", [[Power(device_id="d", t0_ns=1, t1_ns=2, power_mw=1, source="rapl")]])
    done = CliRunner().invoke(cli.app, ["ledger", "verify", "--ledger", str(root)])
    assert done.exit_code == 3, done.output
