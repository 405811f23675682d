"""The books: periods that were frozen, and their corrections."""
