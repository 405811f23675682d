"""What to keep an eye on: budgets, forecasts of a month, days that stand out and what drove the change."""
