"""Price books: their entries, the rule that chooses one, and the example that comes with ROSE."""
