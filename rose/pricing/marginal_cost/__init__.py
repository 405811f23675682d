"""The marginal cost of borrowing. Each of its terms is computed separately."""
