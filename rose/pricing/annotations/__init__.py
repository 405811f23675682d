"""What people add to the figures: notes on a day, saved views of the dashboard, what they think of an anomaly.

Each is an event of the ledger beside closes and budgets, by a named person; it is taken back by another event.
"""
