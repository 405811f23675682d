"""Cost of a period by any dimensions: closed parts from the books, open parts priced now."""
