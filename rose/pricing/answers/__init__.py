"""The cost of a correct answer and ways to lower it: levers, breakdowns, the frontier, verifiers."""
