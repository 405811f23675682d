from __future__ import annotations

import json
from pathlib import Path

import pytest

from rose.ledger.growth import compaction
from rose.pricing.audit.check import check
from rose.pricing.closing.records import Posting, postings, watermark
from tests.pricing.closing.conftest import CLOSE_ID, late_slice, write


def test_a_posting_goes_through_json_unchanged(closed: Path) -> None:
    (posting,) = postings(closed)[CLOSE_ID]
    assert Posting.from_json(json.loads(json.dumps(posting.to_json()))) == posting
    with pytest.raises(KeyError):
        Posting.from_json({"close_id": "x"})


def test_the_watermark_is_the_last_event_and_its_segment(fleet: Path) -> None:
    before = watermark(fleet)
    ((writer, (seq, sha256)),) = before.items()
    assert (writer, seq) == ("test", 16)
    assert list((fleet / "live" / "test" / "000000").glob(f"*-{sha256}.parquet"))
    write(fleet, [late_slice()], "late")
    assert watermark(fleet) == {"late": (0, watermark(fleet)["late"][1]), **before}
    write(fleet, [late_slice()])
    assert watermark(fleet)["test"][0] == 17
    # A writer that was killed before its first segment stood.
    (fleet / "live" / "closing").mkdir()
    assert "closing" not in watermark(fleet)


def test_closes_outlive_a_compaction(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged segments are still the ones that the watermark names, and events still say what was closed."""
    from rose.ledger import segments
    from rose.ledger.writer import LedgerWriter

    (before,) = postings(closed)[CLOSE_ID]
    for writer in ("closing", "test"):
        with LedgerWriter.open(closed, writer, "ledger"):
            pass
        tail = segments.recover(closed, writer)
        assert tail is not None
        segments.begin_epoch(closed, tail)
    assert compaction.compact(closed, grace_s=0).files_written >= 2
    compaction.compact(closed, grace_s=0)
    assert postings(closed)[CLOSE_ID] == [before]
    assert (closed / "compacted" / "test").exists()
    assert not check(closed).problems
