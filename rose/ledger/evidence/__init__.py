"""Proof for others that a ledger is as its writers wrote it: keys, digests of content, receipts."""
