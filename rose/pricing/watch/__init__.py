"""Budgets and forecasts of a month."""
