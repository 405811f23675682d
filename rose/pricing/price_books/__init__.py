"""Price books: their entries, which book applies, and the shipped example."""
