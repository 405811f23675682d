"""The cost of a correct answer as documents: figures under names, for JSON and for tables, of one run of a ledger."""
