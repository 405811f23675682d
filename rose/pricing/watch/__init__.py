"""What to keep an eye on: budgets, and forecasts of a month."""
