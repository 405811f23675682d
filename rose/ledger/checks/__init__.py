"""The checks of `verify`: the chain of each writer, and what the ledger's records expect."""
