"""The cost of a correct answer, which factors and verifiers lower it, and where to spend next."""
