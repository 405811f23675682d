"""A priced run with its tokens and groups."""
