"""The checks of `verify`: the chain of each writer, and the ledger's records about its own files."""
