"""The audit trail: from any dollar to its events, each step worked out anew, and whether a close is what was closed."""
