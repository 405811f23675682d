"""What a period cost, by whatever a reader asks: closed parts from the books, open ones priced now."""
