"""Warnings for a month: budgets, and forecasts of a month."""
