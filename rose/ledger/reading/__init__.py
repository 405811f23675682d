"""How people read a ledger: bounded SQL, named queries, the dictionary."""
