"""The cost of a borrow and of its alternatives."""
