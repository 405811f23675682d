"""What a correct answer cost, and what would make it cheaper: levers, the frontier, verifiers."""
