"""The marginal cost of a borrow. Each of its terms is computed separately."""
