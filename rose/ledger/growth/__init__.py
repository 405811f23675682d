"""How a ledger grows: compaction, daily sums, archives, and copies for other engines."""
