"""What the page Cost is made of."""
