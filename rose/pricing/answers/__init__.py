"""What a correct answer cost, and what would make it cheaper: levers, breakdowns, the frontier, verifiers."""
