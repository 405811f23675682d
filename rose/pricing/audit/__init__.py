"""The audit trail recomputes any dollar from its events, and proves a close unchanged."""
