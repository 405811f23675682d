"""The books: frozen periods and their corrections."""
