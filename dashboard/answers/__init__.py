"""What the page Cost per correct is made of."""
