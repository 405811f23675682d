"""An honest ledger of any shape is sound against its own receipts, whatever upkeep did to its files."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rose import cli
from rose.events import DeviceSlice, Event, Power, Turn, Verdict
from rose.ledger import layout, rows, segments
from rose.ledger.checks import views
from rose.ledger.evidence import continuation, receipt
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.verify import verify
from tests.long_form import usual

DAY_US = 86_400_000_000
BIG = 2**55 - 1
IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=300)
NUMBERS = st.sampled_from([0.0, -0.0, 5e-324, 1.5, -1e308])
COUNTS = st.sampled_from([0, 1, 7, BIG])


@st.composite
def events(draw: st.DrawFn) -> Event:
    common = {"event_id": draw(st.none() | IDS), "at_us": draw(st.sampled_from([0, 1, 3, 40, 4000])) * DAY_US}
    match draw(st.sampled_from(["power", "turn", "verdict", "slice"])):
        case "power":
            power_mw = draw(st.none() | COUNTS)
            source = "not measured" if power_mw is None else "rapl"
            return Power(**common, device_id=draw(IDS), t0_ns=0, t1_ns=draw(COUNTS), power_mw=power_mw, source=source)
        case "turn":
            return Turn(
                **common,
                trajectory_id=draw(IDS),
                turn=0,
                attempt=0,
                outcome="completed",
                placement="queue",
                prompt_tokens=draw(COUNTS),
                cached_tokens=draw(COUNTS),
                output_tokens=draw(COUNTS),
                queue_ns=0,
                duration_ns=draw(COUNTS),
            )
        case "verdict":
            return Verdict(
                **common,
                trajectory_id=draw(IDS),
                group_id=draw(IDS),
                step=0,
                verifier="v",
                reward=draw(NUMBERS),
                threshold=0.0,
                accepted=draw(st.booleans()),
                correct=draw(st.none() | st.booleans()),
                stale=False,
            )
        case _:
            serving_ns, idle_ns = draw(COUNTS) // 2, draw(COUNTS) // 2
            return DeviceSlice(
                **common,
                device_id=draw(IDS),
                t0_ns=0,
                t1_ns=serving_ns + idle_ns,
                serving_ns=serving_ns,
                rollout_ns=0,
                train_ns=0,
                sync_ns=0,
                activation_ns=0,
                headroom_ns=0,
                idle_ns=idle_ns,
                overlap_ns=0,
            )


EPOCHS = st.lists(st.lists(events(), max_size=6), min_size=1, max_size=4)
STEPS = st.lists(st.sampled_from(["write", "roll up", "compact", "archive"]), min_size=1, max_size=6)


def _write(root: Path, writer: str, epochs: list[list[Event]]) -> None:
    tail = segments.recover(root, writer)
    for epoch in epochs:
        tail = segments.first_epoch(root, writer) if tail is None else segments.begin_epoch(root, tail)
        for half in (epoch[::2], epoch[1::2]):
            batch = [(event.kind, rows.encode(event)) for event in half]
            if batch:
                tail = segments.append(root, tail, rows.table(writer, tail.next_seq, "r", "simulated", batch))


@settings(max_examples=int(usual("1", long="150")), deadline=None, suppress_health_check=list(HealthCheck))
@given(histories=st.lists(EPOCHS, min_size=1, max_size=3), steps=STEPS)
def test_an_honest_ledger_is_sound_against_its_own_receipts(
    histories: list[list[list[Event]]], steps: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        # Nobody is about to make the catalog anew.
        patch.setattr(views, "_PATIENCE_S", 0.0)
        root = layout.create(Path(home) / "ledger")
        receipts = {}
        for number, step in enumerate(["write", *steps]):
            if step == "write":
                for writer, epochs in enumerate(histories):
                    _write(root, f"w{writer}", epochs)
            elif step == "roll up":
                rollup.roll_up(root, grace_s=0)
            elif step == "compact":
                compaction.compact(root, grace_s=0)
            else:
                rollup.roll_up(root, grace_s=0)
                archive.archive(root, older_than_days=1, to=f"{root}-away", delete=True, grace_s=0)
            receipts[f"receipt {number}"] = receipt.take(root)
            report = verify(root, marks=continuation.marks(receipts))
            held = continuation.check(report, receipts)
            assert (report.doubts, held.problems, held.unchecked) == ([], [], []), step


def test_a_structure_that_cannot_be_read_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = layout.create(tmp_path / "ledger")
    _write(root, "a", [[Power(device_id="d", t0_ns=0, t1_ns=1, power_mw=1, source="rapl")]])
    # A newer library might write an index of pages.
    monkeypatch.setattr(segments.pq, "ParquetWriter", functools.partial(pq.ParquetWriter, write_page_index=True))
    _write(root, "a", [[Power(device_id="d", t0_ns=1, t1_ns=2, power_mw=1, source="rapl")]])
    done = CliRunner().invoke(cli.app, ["ledger", "verify", "--ledger", str(root)])
    assert done.exit_code == 3, done.output
