"""The checks of `verify`: the chain of each writer, and the files that the ledger's own records name."""
