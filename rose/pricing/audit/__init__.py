"""The audit trail. It recomputes any charged dollar from its events, and proves that a close has not changed."""
