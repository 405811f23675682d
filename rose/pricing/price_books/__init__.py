"""Price books: their entries, the rule that chooses a book, and the example that comes with ROSE."""
