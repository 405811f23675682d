"""What borrowing costs: its marginal terms, what it is provided for, and what the other ways would have cost."""
