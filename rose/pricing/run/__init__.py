"""What one run cost: the run priced, its tokens, what happened meanwhile, and the report on it."""
