"""The audit trail: from any dollar to its events, each step recomputed, and whether a close is unchanged."""
