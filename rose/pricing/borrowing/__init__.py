"""What a borrow costs, and what its alternatives would cost."""
