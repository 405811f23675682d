"""Pricing turns a ledger's events and a price book into cost."""
