"""The books: frozen periods, their corrections, and their sums."""
