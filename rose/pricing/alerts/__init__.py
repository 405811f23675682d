"""Alerts and scheduled reports: what is worth a message, to whom it goes, and what became of it."""
