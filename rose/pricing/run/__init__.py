"""Cost of one run: the priced run, its tokens, whether it went silent, and the report."""
