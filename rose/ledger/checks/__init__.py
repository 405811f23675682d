"""What `verify` checks besides the chain of each writer."""
