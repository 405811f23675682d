"""The commands `rose sql`, `rose query`, `rose schema`, `rose ledger` and `rose token`."""
