"""The budgets and the forecasts of a month."""
