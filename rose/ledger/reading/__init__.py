"""How people read a ledger: SQL with limits, named queries, and a dictionary of the columns."""
