"""What `verify` holds a ledger against besides the chain of each writer."""
