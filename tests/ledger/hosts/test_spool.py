import pytest

from rose.ledger import layout
from rose.ledger.hosts import spool
from rose.ledger.layout import LedgerError


def test_a_spool_keeps_what_was_not_acknowledged(tmp_path):
    root = layout.create(tmp_path / "ledger")
    assert spool.first_unsent_epoch(root, "w") is None, "no spool"
    spool.make(root)
    assert spool.first_unsent_epoch(root, "w") == 0
    spool.acknowledged(root, "w", 3)
    assert (spool.first_unsent_epoch(root, "w"), spool.first_unsent_epoch(root, "v")) == (3, 0)
    for writer in ("access", "archive", "closing", "compaction", "gateway", "job-prices", "rollup"):
        assert spool.is_local(writer)
        assert spool.first_unsent_epoch(root, writer) is None
    (root / "forwarded" / "w.json").write_text("{")
    with pytest.raises(LedgerError, match=r"forwarded/w.json is damaged; delete it"):
        spool.first_unsent_epoch(root, "w")
