"""A run that was priced, with its tokens and groups."""
