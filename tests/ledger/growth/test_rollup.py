import json
import shutil
import signal
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.events import Power
from rose.ledger.files import layout, rolled, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from tests import programs
from tests.ledger.conftest import ask, record
from tests.long_form import usual

#: What is summed of each daily view, and what has to come to the same.
SAME = {
    "daily_device_time": (
        "sum(slices), sum(ns), sum(serving_ns), sum(idle_ns), sum(overlap_ns), count(DISTINCT day)",
        "count(*), sum(ns), sum(serving_ns), sum(idle_ns), sum(overlap_ns), count(DISTINCT t0::DATE) FROM device_slice",
    ),
    "daily_request": (
        "sum(requests), sum(slo_ok), sum(prompt_tokens), sum(requests) FILTER (lent)",
        # A daily sum is at most what a BIGINT holds.
        f"count(*), count_if(slo_ok), least(coalesce(sum(prompt_tokens), 0), {2**63 - 1}), count_if(lent) FROM request",
    ),
    "daily_latency": ("sum(requests)", "count(ttft_ns) + count(tpot_mean_ns) + count(e2e_ns) FROM request"),
    "daily_lease": ("sum(changes)", "count(*) FROM lease_event"),
    "daily_preemption": (
        "sum(preemptions), sum(duration_ns), sum(tokens_lost)",
        "sum(coalesce(count, 1)), sum(duration_ns), sum(tokens_lost) FROM preemption",
    ),
    "daily_sync": ("sum(syncs), sum(wire_bytes)", "count(*), sum(wire_bytes) FROM sync"),
    "daily_turn": ("sum(turns), sum(output_tokens)", "count(*), sum(output_tokens) FROM turn"),
    "daily_trajectory": ("sum(trajectories), sum(answer_tokens)", "count(*), sum(answer_tokens) FROM trajectory"),
    "daily_verdict": (
        "sum(verdicts), sum(accepted), sum(audited), sum(accepted_wrong)",
        "count(*), count_if(accepted), count(correct), count_if(accepted AND NOT correct) FROM verdict",
    ),
    "daily_event": ("sum(events)", "count(*) FROM event"),
}
assert set(SAME) == set(rolled.ROLLUPS)


def _differing(root):
    found = {}
    for name, (daily, direct) in SAME.items():
        both = [ask(root, f"SELECT {columns}")[0] for columns in (f"{daily} FROM {name}", direct)]
        if len({tuple(value or 0 for value in row) for row in both}) > 1:
            found[name] = both
    return found


@pytest.mark.long
@settings(max_examples=usual(3, long=25), deadline=None)
@given(st.data())
def test_a_daily_view_is_the_sum_of_the_events_however_they_were_rolled_up(any_event, data):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
        root = layout.create(folder)
        for _ in range(data.draw(st.integers(1, 6))):
            with LedgerWriter.open(root, data.draw(st.sampled_from(["a", "b"])), "r") as writer:
                for event in data.draw(st.lists(any_event, max_size=6)):
                    writer.record(event, durable=data.draw(st.booleans()))
            match data.draw(st.sampled_from(["roll up", "compact", "nothing"])):
                case "roll up":
                    rollup.roll_up(Ledger(root), grace_s=0)
                case "compact":
                    compaction.compact(Ledger(root), grace_s=0)
            assert _differing(root) == {}
        assert Ledger(root).verify().problems == []


def _power(n, event_id=None):
    return Power(at_us=n, t0_ns=n, t1_ns=n + 1, power_mw=1, source="rapl", event_id=event_id)


def _closed(root, first, last):
    record(root, *map(_power, range(first, last)), writer="a", durable=True)


def _counted(root):
    return dict(ask(root, "SELECT writer, sum(events) FROM daily_event GROUP BY writer"))


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 2)
    return layout.create(tmp_path / "ledger")


def test_a_roll_up_reads_only_what_is_new_and_old_generations_go(root):
    _closed(root, 0, 5)
    assert rollup.roll_up(Ledger(root), grace_s=0).generation == 0
    assert rollup.roll_up(Ledger(root), grace_s=0).events <= 1, "nothing but its own event may have come since"
    _closed(root, 5, 10)
    rollup.roll_up(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root), grace_s=0)
    assert len(rolled.generations(root)) <= 2
    assert ask(root, "SELECT count(*) FROM unrolled_event WHERE writer = 'a'") == [(0,)]


def test_verify_finds_a_changed_or_missing_roll_up(root):
    _closed(root, 0, 5)
    generation = rollup.roll_up(Ledger(root)).generation
    assert Ledger(root).verify().problems == []
    folder = root / "rollup" / f"{generation:06d}"
    (folder / "daily_event.parquet").write_bytes(b"PAR1")
    (folder / "daily_turn.parquet").unlink()
    assert set(Ledger(root).verify().problems) == {
        f"rollup/{generation:06d}/daily_turn.parquet: it is missing",
        f"rollup/{generation:06d}/daily_event.parquet: its bytes were changed after it was written",
    }
    content = json.loads((folder / "coverage.json").read_bytes())
    (folder / "coverage.json").write_text(json.dumps({**content, "writers": {}}))
    assert any("coverage.json: no roll-up event names it" in problem for problem in Ledger(root).verify().problems)
    (folder / "coverage.json").write_text("{")
    assert any("coverage.json is damaged" in problem for problem in Ledger(root).verify().problems)
    with pytest.raises(LedgerError, match=r"coverage.json is damaged; remove "):
        rollup.roll_up(Ledger(root))
    shutil.rmtree(folder)
    rollup.roll_up(Ledger(root))
    assert _counted(root)["a"] == 5
    assert Ledger(root).verify().problems == []


@pytest.mark.long
def test_kill_9_in_a_roll_up_leaves_the_last_generation(root):
    _closed(root, 0, 5)
    rollup.roll_up(Ledger(root))
    _closed(root, 5, 10)
    writes = ("rose.ledger.files.layout.sync_file", "rose.ledger.files.layout.write_file")
    for moment in ("shutil.rmtree", *writes, "pathlib.Path.rename"):
        code = (
            "import os, signal\n"
            "from rose.ledger.growth import rollup\n"
            f"home, _, name = '{moment}'.rpartition('.')\n"
            "import pathlib, shutil, rose.ledger.files.layout, rose\n"
            "target = eval(home)\n"
            "real = getattr(target, name)\n"
            "def die(*a, **k):\n"
            "    if '.tmp' in str(a[0]) and 'rollup' in str(a[0]):\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    return real(*a, **k)\n"
            "setattr(target, name, die)\n"
            f"rollup.roll_up({str(root)!r})\n"
        )
        assert programs.run(code) == (-signal.SIGKILL, "")
        assert _counted(root)["a"] == 10
    rollup.roll_up(Ledger(root))
    assert _counted(root)["a"] == 10
    assert not list((root / "rollup").glob(".*.tmp"))
