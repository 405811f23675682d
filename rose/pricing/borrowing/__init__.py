"""Cost of borrowing: its marginal terms, the provision for bursts, and the cost of the alternatives."""
