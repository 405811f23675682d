"""The cost of borrowing, beside the cost of its alternatives."""
