"""Which run, and by which book, of those that share a fleet."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from rose import events
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.pricing.price_books import choice
from rose.pricing.run.priced import newest_run
from tests.pricing.shared_fleet.ledger import BOOK, BOOK_TEXT


def test_where_no_run_is_named_it_is_the_newest_that_has_what_the_report_needs(root: Path) -> None:
    # It neither has a device nor made an answer.
    with LedgerWriter.open(root, "later", "later") as writer:
        writer.record(events.Run(action="started", name="later", at_us=2**51))
    with closing(catalog.connect(root)) as connection:
        assert [newest_run(connection, needs) for needs in ("device", "verdict")] == ["fleet", "red"]


def test_an_rl_run_is_priced_by_the_book_that_its_fleet_names(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    (tmp_path / "book.toml").write_text(BOOK_TEXT)
    named = {"price_book": str(tmp_path / "book.toml"), "price_book_sha256": BOOK.sha256}
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", config_json=json.dumps(named)))
        writer.record(events.Run(action="started", name="grpo", run_id="red"))
    for run_id in ("fleet", "red"):
        assert choice.choose(root, None, run_id=run_id).sha256 == BOOK.sha256
