"""Price books: their entries, reading one, which one counts, and the made-up book that comes with ROSE."""
