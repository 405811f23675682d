"""The books: frozen periods, their corrections, and what they come to."""
