"""The cost of a borrow, beside the cost of its alternatives."""
