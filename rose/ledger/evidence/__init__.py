"""Proof for other people that a ledger is as its writers wrote it: keys, digests of events, receipts."""
