"""The cost of borrowing, compared with the cost of its alternatives."""
