"""The marginal cost of a borrow, term by term."""
